//! The Linux kernel's initiator with open-iscsi, in a virtual machine; the script inside is
//! `tests/initiators/kernel/init`.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use harness::target::{Chap, IQN, Spec, Target};

use super::{Options, Tally};
use crate::{
    command,
    vm::{Image, Machine, Said},
};

/// Boots the machine and does what its script asks for.
pub(super) fn run(options: &Options) -> Result<Tally> {
    let image = Image::prepare()?;
    let dir = tempfile::tempdir()?;
    let chap = Chap { user: "db".into(), secret: "twelve-or-more".into() };
    let spec = Spec { chap: Some(chap.clone()), ..Spec::new(dir.path(), SIZE_BYTES) };
    let mut target = Target::start(&options.kind, &spec)?;
    let settings = format!(
        "ek_port={} ek_iqn={IQN} ek_user={} ek_secret={}",
        target.portal.port(),
        chap.user,
        chap.secret
    );
    let scripts = command::repository().join("tests/initiators/kernel");
    let mut machine = Machine::boot(&image, &scripts, &settings, PATIENCE)?;
    let mut passed = 0;
    loop {
        let said = machine
            .listen()
            .with_context(|| format!("the target's log:\n{}", target.server().last_words()))?;
        match said {
            Said::Passed(step) => {
                println!("passed  {step}");
                passed += 1;
            }
            Said::Ask(what) => {
                target = obey(&what, target)?;
                machine.tell("go")?;
            }
            Said::Done => break,
        }
    }
    target.server().alive()?;
    Ok(Tally::passed(passed))
}

/// Does what the guest cannot do itself.
fn obey(what: &str, target: Target) -> Result<Target> {
    match what {
        "kill" => target.kill_and_restart().context("SIGKILL and restart"),
        "discarded" => {
            // UNMAP punches holes: a discarded volume occupies next to nothing.
            let occupied = fs::metadata(target.image())?.blocks() * 512;
            ensure!(
                occupied < SIZE_BYTES / 8,
                "after blkdiscard the backing file still occupies {occupied} bytes"
            );
            Ok(target)
        }
        other => bail!("the guest asks for `{other}`, which nobody here can do"),
    }
}

const SIZE_BYTES: u64 = 512 << 20;
/// Software emulation on two busy cores.
const PATIENCE: Duration = Duration::from_mins(8);
