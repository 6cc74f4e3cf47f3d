//! Delivery: batches go to the sink in order, each until it is received.
//!
//! One batch is under way at a time: a transaction of the receiver carries thousands of records, so one at a time is already
//! faster than any source observes, and nothing has to be put back in order. After something was appended the delivery
//! lingers for a moment, so that a trickle becomes batches rather than one request for each record.

use crate::{SinkError, Spool, UsageSink, spool::Cursor};
use firn_env::{Backoff, Env, Retry};
use std::{sync::Arc, time::Duration};

/// When batches are sent and sent again.
#[derive(Clone, Debug)]
pub struct DeliveryPolicy {
    /// Waited after an append, so that others can join the batch. A bill need not be newer than that.
    pub linger: Duration,
    /// One try takes no longer.
    pub try_limit: Duration,
    /// Longest pause before the second try; doubled for each further one.
    pub first_pause: Duration,
    /// The longest pause. Tries go on for ever: only the spool's size is limited.
    pub longest_pause: Duration,
    /// Tries of one batch before [`Delivery::deliver_pending`] tells its caller that the receiver is not there.
    pub attempts: u32,
}

impl Default for DeliveryPolicy {
    fn default() -> Self {
        Self {
            linger: Duration::from_secs(5),
            try_limit: Duration::from_secs(30),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(60),
            attempts: 5,
        }
    }
}

/// What one round delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Batches received.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
}

/// Carries a spool's records to a sink.
pub struct Delivery {
    env: Env,
    spool: Spool,
    sink: Arc<dyn UsageSink>,
    policy: DeliveryPolicy,
    backoff: Backoff,
    cursor: Cursor,
}

impl Delivery {
    /// From the oldest record that the spool still has. One delivery a spool.
    pub fn new(spool: &Spool, sink: Arc<dyn UsageSink>, policy: DeliveryPolicy) -> Self {
        Self {
            env: spool.env().clone(),
            spool: spool.clone(),
            sink,
            // Sources that lost the receiver together do not come back together.
            backoff: Backoff::new(policy.first_pause.saturating_mul(2), policy.longest_pause),
            policy,
            cursor: Cursor::default(),
        }
    }

    /// Sends until nothing is waiting.
    ///
    /// Cancel-safe: a batch whose receipt was not noted is sent again.
    ///
    /// # Errors
    /// [`SinkError`] if a batch was refused, or not received after so many tries; what was received stays received.
    pub async fn deliver_pending(&mut self) -> Result<Delivered, SinkError> {
        let mut delivered = Delivered::default();
        loop {
            let read = self.spool.read(self.cursor).await;
            let read =
                read.map_err(|error| SinkError::Unavailable(format!("the spool cannot be read: {error}")))?;
            let Some((batch, after)) = read else {
                return Ok(delivered);
            };
            self.spool.sending(&batch).await;
            self.send(&batch).await?;
            self.env.fault_point("usage.delivery.received").await;
            self.cursor = after;
            self.spool.received(batch.next_sequence()).await;
            delivered.batches += 1;
            delivered.records += batch.observations().len() as u64;
        }
    }

    async fn send(&self, batch: &crate::UsageBatch) -> Result<(), SinkError> {
        let mut attempts = Retry::new(self.backoff, self.policy.attempts)
            .each_within(self.policy.try_limit)
            .begin(&self.env);
        loop {
            let tried = attempts
                .bounded(self.sink.accept(batch))
                .await
                .unwrap_or_else(|elapsed| Err(SinkError::Unavailable(elapsed.to_string())));
            match tried {
                Ok(()) => return Ok(()),
                Err(SinkError::Unavailable(_)) if firn_env::planted!("usage.doubt_is_receipt") => {
                    return Ok(());
                }
                Err(error @ SinkError::Refused(_)) => return Err(error),
                Err(error @ SinkError::Unavailable(_)) => attempts.again(error).await?,
            }
        }
    }

    /// Delivers for ever; end it by aborting its task.
    pub async fn run(mut self) {
        let mut failures = 0;
        loop {
            self.spool.grown().await;
            loop {
                self.env.sleep(self.policy.linger).await;
                match self.deliver_pending().await {
                    Ok(_) => {
                        failures = 0;
                        break;
                    }
                    Err(error) => {
                        failures += 1;
                        tracing::warn!(source = %self.spool.source(), %error, failures, "usage records wait in the spool");
                        self.backoff.wait(&self.env, failures).await;
                    }
                }
            }
        }
    }
}
