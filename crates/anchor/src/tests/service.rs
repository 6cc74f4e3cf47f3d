//! A service before the table, as edges reach it over a bad network: calls go as text, are lost on either way, come twice, come
//! late and out of order, and the service restarts and forgets what it remembered.

use super::support::Dice;
use crate::{AnchorAnswer, AnchorBackend, AnchorCall, AnchorRole, KnownTuples, TableBackend};
use async_trait::async_trait;
use firn_table::{MemoryTableClient, TableError};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Calls on their way for long, at most.
const DELAYED: usize = 8;

pub(super) struct Service {
    dice: Arc<Dice>,
    known: Mutex<Arc<KnownTuples>>,
    delayed: Mutex<VecDeque<(Arc<MemoryTableClient>, AnchorCall)>>,
    is_unreliable: AtomicBool,
}

/// An edge's way to it.
pub(super) struct Reached {
    service: Arc<Service>,
    client: Arc<MemoryTableClient>,
}

impl Service {
    pub(super) fn new(dice: Arc<Dice>) -> Self {
        Self {
            dice,
            known: Mutex::default(),
            delayed: Mutex::default(),
            is_unreliable: AtomicBool::new(false),
        }
    }

    pub(super) fn become_unreliable(&self) {
        self.is_unreliable.store(true, Ordering::SeqCst);
    }

    pub(super) fn reached_by(self: &Arc<Self>, client: Arc<MemoryTableClient>) -> Reached {
        Reached {
            service: self.clone(),
            client,
        }
    }

    async fn perform(
        &self,
        client: &Arc<MemoryTableClient>,
        call: AnchorCall,
    ) -> Result<AnchorAnswer, TableError> {
        let known = self.known.lock().unwrap().clone();
        let backend = TableBackend::new(client.clone(), "anchor/tenant/volume")
            .for_role(AnchorRole::Edge)
            .knowing(known);
        backend.call(call).await
    }

    fn happens(&self, one_in: u64) -> bool {
        self.is_unreliable.load(Ordering::SeqCst) && self.dice.roll(one_in) == 0
    }
}

fn as_text<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

fn lost(what: &str) -> TableError {
    TableError::Unavailable(format!("{what} was lost"))
}

#[async_trait]
impl AnchorBackend for Reached {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let service = &*self.service;
        let call = as_text(&call);
        if service.happens(15) {
            *service.known.lock().unwrap() = Arc::default();
        }
        if service.happens(8) {
            let drawn = {
                let mut delayed = service.delayed.lock().unwrap();
                match delayed.len() {
                    0 => None,
                    waiting => delayed.remove(service.dice.roll(waiting as u64) as usize),
                }
            };
            if let Some((client, late)) = drawn {
                let _nobody_hears_it = service.perform(&client, late).await;
            }
        }
        if service.happens(20) {
            return Err(lost("the call"));
        }
        if !call.is_read() && service.happens(12) {
            let mut delayed = service.delayed.lock().unwrap();
            if delayed.len() < DELAYED {
                delayed.push_back((self.client.clone(), call));
            }
            return Err(lost("the call, for now,"));
        }
        let mut answer = service.perform(&self.client, call.clone()).await;
        if service.happens(12) {
            answer = service.perform(&self.client, call).await;
        }
        if service.happens(12) {
            return Err(lost("the answer"));
        }
        answer.map(|answer| as_text(&answer))
    }
}
