//! Queue depth, as a mount notes it: what is asked of it counts among the requests in flight.

use crate::world::world_over;
use async_trait::async_trait;
use firn_vfs::{Caller, CreateMode, Created, FileHandle, MemoryVfs, Name, Vfs, VfsError, VfsLayer};
use std::{fs::File, sync::Arc, thread, time::Duration};
use tokio::sync::Semaphore;

/// The model, which makes no file before it is let.
struct Gated {
    below: Arc<MemoryVfs>,
    gate: Arc<Semaphore>,
}

#[async_trait]
impl VfsLayer for Gated {
    fn below(&self) -> &dyn Vfs {
        &*self.below
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: FileHandle,
        name: &Name,
        mode: CreateMode,
    ) -> Result<Created, VfsError> {
        self.gate.acquire().await.expect("never closed").forget();
        self.below.create(caller, directory, name, mode).await
    }
}

#[test]
fn a_request_of_the_kernel_is_in_flight_until_it_is_answered() {
    let gate = Arc::new(Semaphore::new(0));
    let gated = gate.clone();
    let Some(world) = world_over(false, move |below| Arc::new(Gated { below, gate: gated })) else {
        return;
    };
    let in_flight = |wanted: usize| {
        for _ in 0..2000 {
            if world.env.queue_depth().in_flight() == wanted {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("never {wanted} requests in flight");
    };
    in_flight(0);
    let path = world.path("new");
    let maker = thread::spawn(move || File::create_new(path).map(drop));
    in_flight(1);
    gate.add_permits(1);
    maker.join().expect("no panic").expect("made");
    in_flight(0);
}
