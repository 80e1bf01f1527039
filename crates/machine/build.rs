// SPDX-License-Identifier: MIT OR Apache-2.0
//! Says which engine this is, for `src/model.rs`: of a release nothing (`NESTWALK_RELEASE=1`, as
//! the builders of wheels set it), of any other build a number that changes with the engine's
//! sources.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The crates whose code decides what a run comes to.
const ENGINE: [&str; 5] = ["mem", "os", "mmu", "workload", "machine"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed=NESTWALK_RELEASE");
    let release = env::var_os("NESTWALK_RELEASE").is_some_and(|value| value == "1");
    let mut hasher = DefaultHasher::new();
    for name in ENGINE {
        let folder = Path::new("..").join(name).join("src");
        println!("cargo::rerun-if-changed={}", folder.display());
        for file in sources(&folder)? {
            file.hash(&mut hasher);
            fs::read(&file)?.hash(&mut hasher);
        }
    }
    let build = if release { String::new() } else { format!("{:016x}", hasher.finish()) };
    println!("cargo::rustc-env=NESTWALK_BUILD={build}");
    Ok(())
}

/// All Rust files below `folder`, in order.
fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
