//! A mailer that keeps its letters, for tests to read.

use async_trait::async_trait;
use firn_api::{Mail, MailError, Mailer};
use std::sync::{Arc, Mutex};

/// Keeps what it is given.
#[derive(Clone, Default)]
pub struct Letterbox(Arc<Mutex<Vec<Mail>>>);

impl Letterbox {
    pub fn newest(&self) -> Mail {
        self.0.lock().unwrap().last().expect("a letter").clone()
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// What stands after `label: ` in the newest letter.
    pub fn find(&self, label: &str) -> String {
        let body = self.newest().body;
        let line = body
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{label}: ")));
        line.expect("the letter says so").to_owned()
    }
}

#[async_trait]
impl Mailer for Letterbox {
    async fn send(&self, mail: &Mail) -> Result<(), MailError> {
        self.0.lock().unwrap().push(mail.clone());
        Ok(())
    }
}
