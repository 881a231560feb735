//! `evenkeel metadata`: what is done to the disks of a node that is stopped.

use ops::cli::MetadataCreate;

use super::{CommandError, print};
use crate::{configuration, daemon::disk_config, disk::Backing};

/// Makes what this node has for a volume ours: its bytes become the volume's data, with new metadata.
pub(super) fn create(create: &MetadataCreate) -> Result<(), CommandError> {
    let (config, node) = configuration::load(&create.config, create.node.as_deref())?;
    let name = &create.volume;
    let missing = |what: String| CommandError::Missing { what, file: create.config.display().to_string() };
    let resource = config
        .resource(&name.resource)
        .ok_or_else(|| missing(format!("the configuration has no resource `{}`", name.resource)))?;
    let volume = resource
        .volume(name.number)
        .ok_or_else(|| missing(format!("resource `{}` has no volume {}", resource.name, name.number)))?;
    let disk = config
        .node(&node)
        .and_then(|own| disk_config(volume, own.id))
        .ok_or_else(|| missing(format!("node `{node}` is diskless for {name}")))?;
    Backing::create_metadata(&disk)?;
    print(&format!(
        "{} is the disk of {name} on {node} now, with its data as it was.\n\
         The replica is Inconsistent until node {node} runs and has met its peers. Where this data is the good one:\n  \
         evenkeel primary {} --force\n",
        disk.path.display(),
        resource.name
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use block::VolumeNumber;
    use ops::cli::VolumeName;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::{Found, OpenError};

    const SIZE: usize = 1 << 20;

    fn place() -> (TempDir, MetadataCreate, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (config, disk) = (directory.path().join("a.toml"), directory.path().join("db0.img"));
        let text = format!(
            "[cluster]\nname = \"c\"\n[[node]]\nname = \"alpha\"\nid = 0\niscsi = [\"127.0.0.1:3260\"]\n\
             [[resource]]\nname = \"db\"\n[[resource.volume]]\nnumber = 0\nsize = {SIZE}\n\
             disks = {{ alpha = \"db0.img\" }}\n"
        );
        fs::write(&config, text).unwrap();
        let volume = VolumeName { resource: "db".into(), number: VolumeNumber(0) };
        (directory, MetadataCreate { volume, config, node: Some("alpha".into()) }, disk)
    }

    /// The contract: foreign content is not written before `metadata create`, and is the volume's data after it.
    #[test]
    fn a_foreign_file_becomes_ours_with_its_data() {
        let (_directory, asked, file) = place();
        fs::write(&file, vec![0x5a; SIZE]).unwrap();
        let (config, _) = configuration::load(&asked.config, Some("alpha")).unwrap();
        let disk = disk_config(&config.resources[0].volumes[0], config.nodes[0].id).unwrap();
        assert!(matches!(Backing::open(&disk), Err(OpenError::NoRoom { .. })));
        create(&asked).unwrap();
        let (backing, found) = Backing::open(&disk).unwrap();
        assert_eq!(found, Found::Data);
        assert_eq!(fs::read(&file).unwrap()[..SIZE], vec![0x5a; SIZE]);
        // A node that runs has it locked.
        let busy = create(&asked).unwrap_err();
        assert!(busy.to_string().contains("in use"), "{busy}");
        drop(backing);
        create(&asked).unwrap();
    }

    /// What the configuration does not have is named, and nothing is written.
    #[test]
    fn what_is_not_there_is_named() {
        let (_directory, asked, file) = place();
        let refusal = |change: &dyn Fn(&mut MetadataCreate)| {
            let mut asked = asked.clone();
            change(&mut asked);
            create(&asked).unwrap_err().to_string()
        };
        for (text, hint) in [
            (refusal(&|asked| asked.volume.resource = "mail".into()), "no resource `mail`"),
            (refusal(&|asked| asked.volume.number = VolumeNumber(7)), "no volume 7"),
            (refusal(&|asked| asked.node = Some("bravo".into())), "its nodes are alpha"),
            (refusal(&|_| ()), "db0.img"),
        ] {
            assert!(text.contains(hint), "{text}");
        }
        assert!(!file.exists());
    }
}
