//! A virtual machine with Debian's kernel: built once from packages, booted by software emulation.
//!
//! It lives in `~/.cache/evenkeel-vm`, outside the repository, and meets the host's loopback at 10.0.2.2.

mod initramfs;
mod kernel;
mod machine;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

pub(crate) use self::machine::{Machine, Said};

/// A kernel and the archive that it boots from.
#[derive(Debug)]
pub(crate) struct Image {
    kernel: PathBuf,
    archive: PathBuf,
}

impl Image {
    /// The image of the cache, built first when there is none.
    ///
    /// # Errors
    /// When a package cannot be fetched or a program is missing.
    pub(crate) fn prepare() -> Result<Self> {
        let cache = cache()?;
        fs::create_dir_all(&cache)?;
        if let Some(image) = Self::newest(&cache)? {
            return Ok(image);
        }
        println!("building the virtual machine in {} (once)", cache.display());
        let package = kernel::fetch(&cache)?;
        let dir = cache.join(&package.name);
        fs::create_dir_all(&dir)?;
        fs::copy(&package.image, dir.join(KERNEL))?;
        // The archive gets its name last, so that a build that was interrupted is not taken for one.
        let unfinished = dir.join("unfinished");
        initramfs::build(&package, &unfinished)?;
        fs::rename(unfinished, dir.join(ARCHIVE))?;
        fs::remove_dir_all(&package.unpacked)?;
        Self::newest(&cache)?.context("the virtual machine that was just built is gone")
    }

    fn newest(cache: &Path) -> Result<Option<Self>> {
        let mut dirs = Vec::new();
        for entry in fs::read_dir(cache)? {
            let dir = entry?.path();
            if dir.join(ARCHIVE).is_file() {
                dirs.push(dir);
            }
        }
        dirs.sort();
        let image = |dir: PathBuf| Self { kernel: dir.join(KERNEL), archive: dir.join(ARCHIVE) };
        Ok(dirs.pop().map(image))
    }
}

fn cache() -> Result<PathBuf> {
    let home = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    Ok(home.context("neither HOME nor XDG_CACHE_HOME is set")?.join(FORMAT))
}

/// The directory's name tells the layout: change the number when the contents change.
const FORMAT: &str = "evenkeel-vm-1";
const KERNEL: &str = "vmlinuz";
const ARCHIVE: &str = "root.cpio";
