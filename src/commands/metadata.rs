//! `evenkeel metadata`: what is done to the disks of a node that is stopped.

mod show;

use ops::{
    cli::{MetadataCreate, MetadataPlace, MetadataShow, MetadataWipe},
    config::{Config, Resource},
};
use replication::{Inspection, MetadataError, metadata_len};
use show::{Shown, State, Superblock};

use super::{CommandError, json, print};
use crate::{
    configuration,
    daemon::disk_config,
    disk::{Backing, DiskConfig, Found, Metadata},
};

/// A volume of the configuration, and what this node has for it.
struct Place {
    config: Config,
    /// The resource's place in it.
    resource: usize,
    node: String,
    disk: DiskConfig,
}

impl Place {
    fn find(asked: &MetadataPlace) -> Result<Self, CommandError> {
        let (config, node) = configuration::load(&asked.config, asked.node.as_deref())?;
        let name = &asked.volume;
        let missing = |what: String| CommandError::Missing { what, file: asked.config.display().to_string() };
        let resource = config
            .resources
            .iter()
            .position(|resource| resource.name == name.resource)
            .ok_or_else(|| missing(format!("the configuration has no resource `{}`", name.resource)))?;
        let volume = config.resources[resource]
            .volume(name.number)
            .ok_or_else(|| missing(format!("resource `{}` has no volume {}", name.resource, name.number)))?;
        let disk = config
            .node(&node)
            .and_then(|own| disk_config(volume, own.id))
            .ok_or_else(|| missing(format!("node `{node}` is diskless for {name}")))?;
        Ok(Self { config, resource, node, disk })
    }

    fn resource(&self) -> &Resource {
        &self.config.resources[self.resource]
    }

    /// What the superblock of an open backing says.
    fn inspect(&self, asked: &MetadataPlace, backing: &Backing) -> Result<Inspection, CommandError> {
        let own = self.config.node(&self.node).expect("found before");
        let replicated = self.config.replicated(self.resource(), own.id);
        let volume = replicated.volumes.iter().find(|volume| volume.number == asked.volume.number);
        let len = volume.map_or(0, metadata_len).min(backing.metadata_len());
        let mut area = vec![0; usize::try_from(len).unwrap_or_default()];
        let unread = |source| CommandError::Io {
            what: format!("cannot read the metadata of {}", self.disk.path.display()),
            source,
        };
        backing.read_metadata(0, &mut area).map_err(unread)?;
        replication::inspect(&area.into(), &replicated, asked.volume.number)
            .map_err(|error| self.refused(&error))
    }

    /// Fails where the disk has the metadata of another volume.
    fn own(&self, asked: &MetadataPlace) -> Result<(), CommandError> {
        let Ok((backing, Found::Superblocks(_))) = Backing::open_existing(&self.disk) else { return Ok(()) };
        match self.inspect(asked, &backing)?.foreign {
            Some(error) => Err(self.refused(&error)),
            None => Ok(()),
        }
    }

    /// The disk with the metadata that it has.
    fn open(&self) -> Result<(Backing, Found), CommandError> {
        Backing::open_existing(&self.disk).map_err(|error| {
            if error.is_unlabelled() {
                CommandError::NoMetadata { disk: self.disk.path.display().to_string() }
            } else {
                error.into()
            }
        })
    }

    fn refused(&self, error: &MetadataError) -> CommandError {
        CommandError::Metadata { disk: self.disk.path.display().to_string(), error: error.clone() }
    }
}

/// Makes what this node has for a volume ours: its bytes become the volume's data, with new metadata.
pub(super) fn create(create: &MetadataCreate) -> Result<(), CommandError> {
    let place = Place::find(&create.place)?;
    if !create.force {
        place.own(&create.place)?;
    }
    Backing::create_metadata(&place.disk, create.force)?;
    print(&format!(
        "{} is the disk of {} on {node} now, with its data as it was.\n\
         The replica is Inconsistent until node {node} runs and has met its peers. Where this data is the good one:\n  \
         evenkeel primary {} --force\n",
        place.disk.path.display(),
        create.place.volume,
        place.resource().name,
        node = place.node,
    ))
}

/// Prints what the metadata says.
pub(super) fn show(show: &MetadataShow) -> Result<(), CommandError> {
    let shown = shown(&show.place)?;
    print(&if show.json { json(&shown) } else { shown.text() })
}

fn shown(asked: &MetadataPlace) -> Result<Shown, CommandError> {
    let place = Place::find(asked)?;
    let (backing, found) = place.open()?;
    let (state, superblock) = match found {
        Found::Fresh => (State::Fresh, None),
        Found::Data => (State::Adopted, None),
        Found::Superblocks(_) => {
            let found = place.inspect(asked, &backing)?;
            (State::Written, Some(Superblock::new(found, &place.config)))
        }
    };
    Ok(Shown {
        resource: asked.volume.resource.clone(),
        volume: asked.volume.number.0,
        metadata: match &place.disk.metadata {
            Metadata::Internal => "internal".to_owned(),
            Metadata::External(path) => path.display().to_string(),
        },
        disk: place.disk.path.display().to_string(),
        node: place.node,
        state,
        superblock,
    })
}

/// Takes the metadata away. The data stays.
pub(super) fn wipe(wipe: &MetadataWipe) -> Result<(), CommandError> {
    let place = Place::find(&wipe.place)?;
    if !wipe.force {
        place.own(&wipe.place)?;
    }
    place.open()?.0.wipe_metadata()?;
    print(&format!(
        "{} is no disk of {} any more; its data is as it was.\n",
        place.disk.path.display(),
        wipe.place.volume
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::FileExt, path::PathBuf};

    use block::VolumeNumber;
    use ops::cli::VolumeName;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::OpenError;

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
        let place = MetadataPlace { volume, config, node: Some("alpha".into()) };
        (directory, MetadataCreate { place, force: false }, disk)
    }

    /// The contract: foreign content is not written before `metadata create`, and is the volume's data after it.
    #[test]
    fn a_foreign_file_becomes_ours_with_its_data() {
        let (_directory, asked, file) = place();
        fs::write(&file, vec![0x5a; SIZE]).unwrap();
        let (config, _) = configuration::load(&asked.place.config, Some("alpha")).unwrap();
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

    /// Another cluster's superblock is named, and neither overwritten nor wiped without `--force`; a node that runs keeps
    /// everybody away.
    #[test]
    fn another_volumes_metadata_is_kept() {
        let (_directory, asked, file) = place();
        create_with_superblock(&asked, &file);
        let before = fs::read(&file).unwrap();
        let text = shown(&asked.place).unwrap().text();
        assert!(text.contains("superblock written 1 times") && !text.contains("NOT"), "{text}");
        let config = fs::read_to_string(&asked.place.config).unwrap();
        fs::write(&asked.place.config, config.replace("\"c\"", "\"other\"")).unwrap();
        let wiped = |force| wipe(&MetadataWipe { place: asked.place.clone(), force });
        for refused in [create(&asked), wiped(false)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("another cluster") && refused.contains("--force"), "{refused}");
        }
        assert!(fs::read(&file).unwrap() == before);
        let seen = serde_json::to_value(shown(&asked.place).unwrap()).unwrap();
        assert_eq!(seen["state"], "written");
        assert!(seen["superblock"]["foreign"].as_str().unwrap().contains("cluster"), "{seen}");
        let lock = Backing::open(&Place::find(&asked.place).unwrap().disk).unwrap();
        for busy in [shown(&asked.place).map(drop), wiped(true)] {
            assert!(busy.unwrap_err().to_string().contains("in use"));
        }
        drop(lock);
        create(&MetadataCreate { force: true, ..asked.clone() }).unwrap();
        assert_eq!(shown(&asked.place).unwrap().state, State::Adopted);
        wiped(false).unwrap();
        assert_eq!(fs::read(&file).unwrap(), vec![0x5a; SIZE]);
        // Nothing is left to be shown or taken away.
        for nothing in [shown(&asked.place).map(drop), wiped(true)] {
            assert!(nothing.unwrap_err().to_string().contains("carries no Evenkeel metadata"));
        }
    }

    /// What a node that starts for the first time writes down.
    fn create_with_superblock(asked: &MetadataCreate, file: &std::path::Path) {
        fs::write(file, vec![0x5a; SIZE]).unwrap();
        create(asked).unwrap();
        let place = Place::find(&asked.place).unwrap();
        let config = place.config.replicated(place.resource(), place.config.nodes[0].id);
        let found = vec![(VolumeNumber(0), replication::Found::Adopted)];
        let now = replication::Instant::default();
        let mut effects = Vec::new();
        let mut core = replication::Resource::new(config, found, 1, now, &mut effects).unwrap();
        let force = replication::Input::Operator {
            request: replication::OperatorRequest(1),
            verb: replication::Verb::Primary { force: true },
        };
        core.step(now, force, &mut effects);
        let written = effects.into_iter().find_map(|effect| match effect {
            replication::Effect::Disk {
                request: replication::DiskRequest::WriteMetadata { offset, data },
                ..
            } => Some((offset, data)),
            _ => None,
        });
        let (offset, data) = written.expect("the superblock is written first");
        let disk = fs::OpenOptions::new().write(true).open(file).unwrap();
        disk.write_all_at(&data, SIZE as u64 + 4096 + offset).unwrap();
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
            (refusal(&|asked| asked.place.volume.resource = "mail".into()), "no resource `mail`"),
            (refusal(&|asked| asked.place.volume.number = VolumeNumber(7)), "no volume 7"),
            (refusal(&|asked| asked.place.node = Some("bravo".into())), "its nodes are alpha"),
            (refusal(&|_| ()), "db0.img: No such file"),
        ] {
            assert!(text.contains(hint), "{text}");
        }
        assert!(!file.exists());
    }
}
