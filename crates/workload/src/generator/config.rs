// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters that every generator has.

use nestwalk_mem::PageCount;

use crate::stream::WorkloadError;

/// What every generator is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Common {
    /// Memory that the program has, at most.
    pub(super) footprint: PageCount,
    /// Accesses before counting begins, of all threads together; `None`: until it is told.
    pub(super) warm_accesses: Option<u64>,
    /// Accesses that are counted, of all threads together.
    pub(super) measured_accesses: u64,
    /// Threads of the program.
    pub(super) threads: u16,
    /// Everything random follows from it.
    pub(super) seed: u64,
}

/// How a program's accesses to its data structures are mixed with those to its locals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mixture {
    /// Of a thousand accesses, those to stack, locals and static data.
    pub(super) local_permille: u16,
    /// Instructions of a thousand accesses, their own included.
    pub(super) instructions_per_kiloaccess: u32,
    /// Mappings of code, libraries and their data.
    pub(super) small_mappings: u16,
    /// Pages over which a thread's locals are spread.
    pub(super) local_pages: u64,
}

/// Declares the parameters of one generator: the common ones, and its own with their defaults.
///
/// With `mixed(local_permille, instructions_per_kiloaccess, small_mappings)`, those of a
/// [`Mixture`] and their defaults besides.
macro_rules! parameters {
    ($(#[$doc:meta])* $name:ident mixed($local:expr, $instructions:expr, $small:expr) {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)*
    }) => {
        crate::generator::config::parameters! {
            $(#[$doc])*
            $name {
                $($(#[$field_doc])* $field: $type = $default,)*
                /// Of a thousand accesses, those to stack, locals and static data; at most 995.
                local_permille: u16 = $local,
                /// Instructions of a thousand accesses, their own included.
                instructions_per_kiloaccess: u32 = $instructions,
                /// Mappings of code, libraries and their data.
                small_mappings: u16 = $small,
            }
        }

        impl $name {
            pub(super) fn mixture(&self) -> crate::generator::config::Mixture {
                crate::generator::config::Mixture {
                    local_permille: self.local_permille,
                    instructions_per_kiloaccess: self.instructions_per_kiloaccess,
                    small_mappings: self.small_mappings,
                    local_pages: crate::generator::locals::LOCAL_PAGES,
                }
            }
        }
    };
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// Memory that the program has, at most; `"4 GiB"`.
            #[serde(with = "nestwalk_mem::size::pages")]
            #[schemars(with = "nestwalk_mem::schema::Pages")]
            pub footprint: nestwalk_mem::PageCount,
            /// Accesses before counting begins, of all threads together. If left out, until
            /// what is measured no longer drifts (`docs/model.md`, "Warm-up").
            #[serde(skip_serializing_if = "Option::is_none")]
            pub warm_accesses: Option<u64>,
            /// Accesses that are counted, of all threads together.
            pub measured_accesses: u64,
            /// Threads of the program.
            pub threads: u16,
            /// Everything random in it follows from this and from the run's seed.
            pub seed: u64,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    footprint: nestwalk_mem::PageCount(4 << 18),
                    warm_accesses: None,
                    measured_accesses: 20_000_000,
                    threads: 1,
                    seed: 1,
                    $($field: $default,)*
                }
            }
        }

        impl $name {
            pub(super) fn common(&self) -> crate::generator::config::Common {
                crate::generator::config::Common {
                    footprint: self.footprint,
                    warm_accesses: self.warm_accesses,
                    measured_accesses: self.measured_accesses,
                    threads: self.threads,
                    seed: self.seed,
                }
            }
        }
    };
}
pub(super) use parameters;

/// An impossible parameter of generator `name`.
pub(super) fn impossible(name: &str, what: impl Into<String>) -> WorkloadError {
    WorkloadError::Parameter { name: name.into(), what: what.into() }
}

impl Common {
    /// Largest footprint: what fits below the stack of a 47-bit address space.
    const FOOTPRINT_MAX: PageCount = PageCount(1 << 34);

    /// Checks what no generator can do with.
    pub(super) fn check(&self, name: &str) -> Result<(), WorkloadError> {
        if self.threads == 0 {
            return Err(impossible(name, "threads = 0: a program has at least one"));
        }
        let least = PageCount(64 * u64::from(self.threads));
        if self.footprint < least || self.footprint > Self::FOOTPRINT_MAX {
            let text = nestwalk_mem::size::format(self.footprint.bytes());
            let least = nestwalk_mem::size::format(least.bytes());
            return Err(impossible(
                name,
                format!("footprint = {text:?}: from {least:?} (for its threads) to \"64 TiB\""),
            ));
        }
        if self.measured_accesses == 0 {
            return Err(impossible(name, "measured_accesses = 0: nothing would be counted"));
        }
        Ok(())
    }
}
