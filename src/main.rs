//! Evenkeel's command line.

use std::process::ExitCode;

use clap::Parser;
use evenkeel::{commands, configuration::ConfigurationError, demo, serve};
use ops::cli::{Cli, Command, Verb};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Verb(verb) => return run(&verb),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel: {error:#}");
            if error.is::<ConfigurationError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn run(verb: &Verb) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("evenkeel: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(commands::run(verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel: {error}");
            error.exit_code()
        }
    }
}
