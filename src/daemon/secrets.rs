//! Reads secrets from their files, which nobody else may read.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
};

use anyhow::{Context, bail};
use ops::config::{Chap, Cluster, Config, Secret, SecretError};

/// The secret that the nodes of a cluster prove to each other, where there is one.
///
/// # Errors
/// When the file cannot be read, or is no good as a secret's.
pub fn cluster(cluster: &Cluster) -> anyhow::Result<Option<Secret>> {
    cluster.secret_file.as_deref().map(|path| read(path, Secret::cluster)).transpose()
}

/// The secret of a user of CHAP.
///
/// # Errors
/// When the file cannot be read, or is no good as a secret's.
pub fn chap(chap: &Chap) -> anyhow::Result<Secret> {
    read(&chap.secret_file, Secret::chap)
}

/// What would keep a node of this configuration from its secrets, on this machine.
#[must_use]
pub fn problems(config: &Config) -> Vec<anyhow::Error> {
    let users = config.resources.iter().flat_map(|resource| {
        let export = &resource.export;
        export.chap.iter().chain(&export.chap_mutual)
    });
    let read = std::iter::once(cluster(&config.cluster).err()).chain(users.map(|user| chap(user).err()));
    read.flatten().collect()
}

fn read(path: &Path, check: fn(Vec<u8>, u32) -> Result<Secret, SecretError>) -> anyhow::Result<Secret> {
    let shown = path.display();
    let found = fs::metadata(path).with_context(|| format!("cannot open the secret's file {shown}"))?;
    // Opening a pipe would wait for its other end.
    if !found.is_file() {
        bail!("{shown} is not a file: a secret is kept in one, with mode 0600");
    }
    let mut file = File::open(path).with_context(|| format!("cannot open the secret's file {shown}"))?;
    let mode = file.metadata()?.mode();
    let mut content = Vec::new();
    file.by_ref()
        .take(FILE_MAX)
        .read_to_end(&mut content)
        .with_context(|| format!("cannot read the secret's file {shown}"))?;
    check(content, mode).with_context(|| shown.to_string())
}

/// What is read of a file at most, in bytes: more than any secret.
const FILE_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    use super::*;

    /// The contract: secrets come from files with mode 0600 or stricter. What is none is told, and never waited for.
    #[test]
    fn what_is_no_secret_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let refusal = || read(&path, Secret::cluster).unwrap_err().to_string();
        assert!(refusal().contains("cannot open"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(refusal().contains("is not a file"));
        fs::remove_file(&path).unwrap();
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        std::io::Write::write_all(&mut options.open(&path).unwrap(), b"sixteen bytes at least").unwrap();
        assert!(read(&path, Secret::cluster).is_ok());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(format!("{:#}", read(&path, Secret::cluster).unwrap_err()).contains("0644"));
    }
}
