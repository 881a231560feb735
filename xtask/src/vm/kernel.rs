//! Debian's kernel package: fetched, unpacked, its modules put in order.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use crate::command;

/// An unpacked kernel package.
#[derive(Debug)]
pub(super) struct Package {
    /// The package's name, which holds the kernel's version.
    pub(super) name: String,
    /// Where it was unpacked.
    pub(super) unpacked: PathBuf,
    /// The kernel.
    pub(super) image: PathBuf,
}

/// Fetches the kernel that Debian's cloud images run and unpacks it under `cache`.
pub(super) fn fetch(cache: &Path) -> Result<Package> {
    let depends = command::output(Command::new("apt-cache").args(["depends", META_PACKAGE]))
        .context("the virtual machine is built from Debian's packages and needs apt")?;
    let name = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let name = name.with_context(|| format!("apt knows no {META_PACKAGE}; run `apt-get update` as root"))?;
    let name = format!("linux-image-{name}");
    let unpacked = cache.join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    fs::create_dir_all(&unpacked)?;
    command::output(Command::new("apt-get").args(["download", "-q", &name]).current_dir(&unpacked))
        .with_context(|| format!("cannot fetch {name}; run `apt-get update` as root and try again"))?;
    let archive =
        only(&unpacked, |name| Path::new(name).extension().is_some_and(|extension| extension == "deb"))?;
    command::output(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
    let image = only(&unpacked.join("boot"), |name| name.starts_with("vmlinuz"))?;
    Ok(Package { name, unpacked, image })
}

impl Package {
    /// The files of the modules called `wanted` and of all they depend on, each behind what it needs.
    ///
    /// # Errors
    /// When the kernel has no such module.
    pub(super) fn modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let mut files = BTreeMap::new();
        collect(&self.unpacked.join("lib/modules"), &mut files)?;
        let mut order = Vec::new();
        for name in wanted {
            require(name, &files, &mut order)?;
        }
        Ok(order)
    }
}

/// All modules below `dir` by the name that `modprobe` would use.
fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            let name =
                path.file_stem().context("a module without a name")?.to_string_lossy().replace('-', "_");
            files.insert(name, path);
        }
    }
    Ok(())
}

fn require(name: &str, files: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<()> {
    let path = files.get(&name.replace('-', "_"));
    let path = path.with_context(|| format!("this kernel has no module {name}"))?;
    if order.contains(path) {
        return Ok(());
    }
    for needed in depends(&fs::read(path)?) {
        require(&needed, files, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// The field `depends` of a module's `.modinfo` section: names with commas between.
fn depends(module: &[u8]) -> Vec<String> {
    let field = module.split(|&byte| byte == 0).find_map(|field| field.strip_prefix(b"depends="));
    let names = String::from_utf8_lossy(field.unwrap_or_default()).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The one file of `dir` whose name `is_it`.
fn only(dir: &Path, is_it: fn(&str) -> bool) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if is_it(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    ensure!(found.len() == 1, "expected one file of its kind in {}, found {found:?}", dir.display());
    Ok(found.remove(0))
}

const META_PACKAGE: &str = "linux-image-cloud-amd64";

#[cfg(test)]
mod tests {
    use super::*;

    /// A module's needs are read from its own file.
    #[test]
    fn needs_are_read() {
        let module = b"\x7fELF..\0license=GPL\0depends=libiscsi,scsi_mod\0name=iscsi_tcp\0";
        assert_eq!(depends(module), ["libiscsi", "scsi_mod"]);
        assert!(depends(b"depends=\0").is_empty());
    }
}
