//! Evenkeel's command line.

use std::process::ExitCode;

use clap::Parser;
use ops::cli::{Cli, Command};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(arguments) => evenkeel::demo::run(&arguments),
        Command::Serve(arguments) => evenkeel::serve::run(&arguments),
        _ => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel: {error:#}");
            ExitCode::FAILURE
        }
    }
}
