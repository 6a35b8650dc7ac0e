//! The user at the terminal, or the program that reads the output.

use std::sync::Arc;

use super::term::screen::Screen;
use crate::config::Env;

/// What a command says goes through this value.
pub(super) struct Ui {
    pub env: Arc<Env>,
    pub screen: Screen,
}

impl Ui {
    pub(super) fn new(env: &Arc<Env>) -> Self {
        Self {
            env: env.clone(),
            screen: Screen::new(env),
        }
    }
}
