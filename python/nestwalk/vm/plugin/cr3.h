/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef NESTWALK_CR3_H
#define NESTWALK_CR3_H

#include <stdint.h>

enum cr3_source { CR3_NOWHERE = 0, CR3_PLUGIN_API = 1, CR3_FUNCTIONS = 2 };

/* Finds out how this QEMU tells a vCPU's CR3. Once, before any vCPU runs. */
enum cr3_source cr3_begin(uint64_t id);

/* CR3 and CR4 of the vCPU that calls. */
uint64_t cr3_now(unsigned vcpu);
uint64_t cr4_now(unsigned vcpu);

#endif
