//! The program: a hands process when it is told to be one, otherwise the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    bantam::sys::set_up();
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    if first.as_deref().is_some_and(|role| role == bantam::hands::ROLE) {
        return bantam::hands::main(args.next().as_deref().and_then(|setup| setup.to_str()));
    }
    bantam::cli::main(first.into_iter().chain(args), &bantam::config::environment())
}
