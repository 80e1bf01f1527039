/* SPDX-License-Identifier: GPL-2.0 */
/* No-ops that harness/insncount.c knows: nopl 0x50544dNN(%rax,%rax,1). */
#ifndef NESTWALK_GUEST_MARKS_H
#define NESTWALK_GUEST_MARKS_H

#define MARK(n) __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00, %c0, 0x4d, 0x54, 0x50" \
				 : : "i"(n) : "memory")
#define BEGIN(step)	MARK(0x40 + (step))
#define END(step)	MARK(0x60 + (step))
#define REPORT()	MARK(0x36)

#endif
