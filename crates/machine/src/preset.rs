// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs by name: a generator with the parameters of a paper's program, from a file of
//! `scenarios/workloads`.
//!
//! A scenario says `workload = { preset = "redis-50g" }`, or changes parameters:
//! `preset = { name = "redis-50g", divide_footprint = 16, measured_accesses = 1000000 }`.

use std::fmt::Formatter;
use std::path::Path;

use nestwalk_mem::{PageCount, size};
use nestwalk_workload::GeneratorConfig;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::catalog::Shelf;
use crate::error::MachineError;

/// A preset, as a scenario names it.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum PresetChoice {
    /// As it is.
    Name(String),
    /// With changes.
    Changed {
        /// The preset's name, or the path of its file.
        name: String,
        /// The footprint is this many times smaller: the same program at another scale.
        divide_footprint: Option<u64>,
        /// Measured accesses to data structures; of two numbers, the first are those of the
        /// warm-up. With one number, a run warms up until what is measured no longer drifts.
        /// Accesses to locals come on top, so that programs that seldom miss the TLB fill the
        /// caches as those do that always miss it.
        #[schemars(length(min = 1, max = 2))]
        data_accesses: Option<Vec<u64>>,
        /// Parameters of the generator that differ.
        #[serde(flatten)]
        #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
        changes: toml::Table,
    },
}

/// [`PresetChoice::Changed`], as it is read.
#[derive(Deserialize)]
struct Changed {
    name: String,
    divide_footprint: Option<u64>,
    data_accesses: Option<Vec<u64>>,
    #[serde(flatten)]
    changes: toml::Table,
}

/// Read by what it is, so that a message names what is wrong in it and not that it fits no variant.
impl<'de> Deserialize<'de> for PresetChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = PresetChoice;

            fn expecting(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
                out.write_str("a preset's name, or a table with its name and what is changed")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<PresetChoice, E> {
                Ok(PresetChoice::Name(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PresetChoice, A::Error> {
                let Changed { name, divide_footprint, data_accesses, changes } =
                    Changed::deserialize(MapAccessDeserializer::new(map))?;
                Ok(PresetChoice::Changed { name, divide_footprint, data_accesses, changes })
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A preset's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preset {
    schema: u32,
    name: String,
    #[serde(rename = "description")]
    _description: String,
    generator: toml::Table,
}

/// No program has fewer pages than this, however much it is divided: libraries and stacks are not.
const PAGES_MIN: u64 = 1 << 13;

impl PresetChoice {
    /// The generator that is meant; a path is relative to `base`.
    ///
    /// # Errors
    /// When there is no such preset, or its generator does not know a parameter.
    pub fn resolve(&self, base: &Path) -> Result<GeneratorConfig, MachineError> {
        let none = toml::Table::new();
        let (name, divisor, data_accesses, changes) = match self {
            Self::Name(name) => (name, None, None, &none),
            Self::Changed { name, divide_footprint, data_accesses, changes } => {
                (name, *divide_footprint, data_accesses.as_deref(), changes)
            }
        };
        let preset: Preset = Shelf::Presets.load(name, base)?;
        let refuse =
            |what: String| MachineError::Scenario { place: format!("preset {}", preset.name.escape_debug()), what };
        if preset.schema != 1 {
            return Err(refuse(format!("file has schema {}; this version reads schema 1", preset.schema)));
        }
        let mut table = preset.generator.clone();
        table.extend(changes.clone());
        if let Some(divisor) = divisor {
            let pages = match table.get("footprint") {
                Some(toml::Value::String(text)) => {
                    size::parse_pages(text).map_err(|error| refuse(error.to_string()))?
                }
                _ => return Err(refuse("divide_footprint needs a footprint such as \"4 GiB\"".into())),
            };
            let pages = PageCount((pages.0.checked_div(divisor)).ok_or_else(|| refuse("divide_footprint = 0".into()))?);
            let pages = PageCount(pages.0.max(PAGES_MIN.min(pages.0 * divisor)));
            table.insert("footprint".into(), toml::Value::String(size::format(pages.bytes())));
        }
        let read = |table: toml::Table| -> Result<GeneratorConfig, MachineError> {
            table.try_into().map_err(|error: toml::de::Error| refuse(error.message().to_owned()))
        };
        let config = read(table.clone())?;
        let Some(counts) = data_accesses else { return Ok(config) };
        let all = toml::Table::try_from(&config).map_err(|error| refuse(error.to_string()))?;
        let local = match &config {
            GeneratorConfig::KeyValue(config) => u64::from(config.local_permille_in_effect()),
            GeneratorConfig::MatchFinder(config) => u64::from(config.local_permille_in_effect()),
            _ => all.get("local_permille").and_then(toml::Value::as_integer).unwrap_or(0).clamp(0, 999) as u64,
        };
        let keys = match counts.len() {
            1 => &["measured_accesses"][..],
            2 => &["warm_accesses", "measured_accesses"],
            count => {
                return Err(refuse(format!("data_accesses has {count} numbers: give [measured] or [warm, measured]")));
            }
        };
        for (key, &count) in keys.iter().zip(counts) {
            let with_local = i64::try_from(count.saturating_mul(1000) / (1000 - local)).unwrap_or(i64::MAX);
            table.insert((*key).into(), with_local.into());
        }
        read(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(text: &str) -> PresetChoice {
        #[derive(Deserialize)]
        struct Holder {
            preset: PresetChoice,
        }
        toml::from_str::<Holder>(text).unwrap().preset
    }

    #[test]
    fn every_preset_is_a_program_of_the_stated_size() {
        for entry in Shelf::Presets.entries() {
            let config = PresetChoice::Name(entry.name.clone()).resolve(Path::new("")).unwrap();
            let facts = config.build().unwrap_or_else(|error| panic!("{}: {error}", entry.name)).facts();
            if matches!(config, GeneratorConfig::Neighbour(_) | GeneratorConfig::Build(_)) {
                continue; // its size follows from what it is
            }
            let wanted = match toml::Table::try_from(&config).unwrap()["footprint"].as_str() {
                Some(text) => size::parse_pages(text).unwrap().0,
                None => panic!("{}", entry.name),
            };
            let off = facts.footprint.0.abs_diff(wanted);
            assert!(off * 50 <= wanted, "{}: {} pages for {wanted}", entry.name, facts.footprint.0);
        }
    }

    #[test]
    fn a_preset_may_be_changed_and_divided() {
        let changed = choice("preset = { name = 'redis-50g', divide_footprint = 50, seed = 7 }");
        let GeneratorConfig::KeyValue(config) = changed.resolve(Path::new("")).unwrap() else { panic!() };
        assert_eq!((config.footprint, config.seed), (PageCount(1 << 18), 7));
    }

    #[test]
    fn accesses_to_data_have_their_local_ones_besides() {
        let changed = choice("preset = { name = 'redis-50g', data_accesses = [100, 49] }");
        let GeneratorConfig::KeyValue(config) = changed.resolve(Path::new("")).unwrap() else { panic!() };
        // 878 of 1000 are local, as redis was counted to make.
        assert_eq!(config.local_permille_in_effect(), 878);
        assert_eq!((config.warm_accesses, config.measured_accesses), (Some(100_000 / 122), 49_000 / 122));
        let gups = choice("preset = { name = 'gups-128g', data_accesses = [7, 8] }").resolve(Path::new("")).unwrap();
        let GeneratorConfig::Gups(config) = gups else { panic!() };
        assert_eq!((config.warm_accesses, config.measured_accesses), (Some(7), 8));
        let gups = choice("preset = { name = 'gups-128g', data_accesses = [8] }").resolve(Path::new("")).unwrap();
        let GeneratorConfig::Gups(config) = gups else { panic!() };
        assert_eq!((config.warm_accesses, config.measured_accesses), (None, 8));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("preset = 'redis-5g'", "did you mean"),
            ("preset = { name = 'redis-50g', stride = 7 }", "stride"),
            ("preset = { name = 'redis-50g', divide_footprint = 0 }", "divide_footprint"),
            ("preset = { name = 'redis-50g', data_accesses = [] }", "give [measured]"),
            ("preset = { name = 'redis-50g', data_accesses = [1, 2, 3] }", "has 3 numbers"),
        ] {
            let error = choice(text).resolve(Path::new("")).unwrap_err().to_string();
            assert!(error.contains(expected) && error.lines().count() == 1, "{text}: {error}");
        }
    }
}
