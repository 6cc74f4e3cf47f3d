//! Telling a running rpcbind about our programs.

use super::{
    Mapping, PROGRAM, Text, WireBinding, networks,
    program::{SET, UNSET},
    universal_address,
};
use crate::rpc::{CallError, Client, Credential, Target};
use firn_env::Env;
use std::time::Duration;
use tracing::warn;

/// Where rpcbind listens for local programs. Only there does it accept registrations, and it asks the kernel who calls:
/// root's can be replaced by root alone.
pub const RPCBIND_SOCKET: &str = "unix:/run/rpcbind.sock";
/// A local program answers at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);
const RPCBIND: u32 = 4;

/// Why rpcbind does not know our programs.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// It does not answer.
    #[error("rpcbind does not answer on {socket}: {error}")]
    NoAnswer {
        /// Where it was called.
        socket: String,
        /// What happened.
        #[source]
        error: CallError,
    },
    /// It does not let us.
    #[error(
        "rpcbind refused to register program {program} version {version} ({network}); is this running as root?"
    )]
    Refused {
        /// The program number.
        program: u32,
        /// The version.
        version: u32,
        /// The transport.
        network: &'static str,
    },
}

/// Our programs, as long as rpcbind shall know them.
pub struct Registration {
    env: Env,
    socket: String,
    mappings: Vec<Mapping>,
}

impl Registration {
    /// Registers `mappings` with the rpcbind on `socket` (usually [`RPCBIND_SOCKET`]), for IPv4 and IPv6, instead of what
    /// a server that did not stop cleanly may have left there.
    ///
    /// # Errors
    /// If it does not answer or refuses.
    pub async fn register(
        env: &Env,
        socket: &str,
        mappings: Vec<Mapping>,
    ) -> Result<Self, RegistrationError> {
        let registration = Self {
            env: env.clone(),
            socket: socket.to_owned(),
            mappings,
        };
        let client = registration.connect().await?;
        for mapping in &registration.mappings {
            for (network, any) in networks(mapping.transport) {
                registration.call(&client, UNSET, mapping, network, any).await?;
                if !registration.call(&client, SET, mapping, network, any).await? {
                    return Err(RegistrationError::Refused {
                        program: mapping.program,
                        version: mapping.version,
                        network,
                    });
                }
            }
        }
        Ok(registration)
    }

    /// Takes the programs out again, at a clean stop. What fails is logged: the next start replaces it.
    pub async fn withdraw(self) {
        let withdrawn = async {
            let client = self.connect().await?;
            for mapping in &self.mappings {
                for (network, any) in networks(mapping.transport) {
                    self.call(&client, UNSET, mapping, network, any).await?;
                }
            }
            Ok::<(), RegistrationError>(())
        };
        if let Err(error) = withdrawn.await {
            warn!(%error, "programs stay registered");
        }
    }

    async fn connect(&self) -> Result<Client, RegistrationError> {
        let connected = Client::connect(&self.env, &self.socket, TIMEOUT).await;
        connected.map_err(|error| self.no_answer(error))
    }

    async fn call(
        &self,
        client: &Client,
        procedure: u32,
        mapping: &Mapping,
        network: &str,
        any: &str,
    ) -> Result<bool, RegistrationError> {
        let target = Target {
            program: PROGRAM,
            version: RPCBIND,
            credential: Credential::None,
        };
        let binding = WireBinding {
            program: mapping.program,
            version: mapping.version,
            network: network.into(),
            address: Text::from(&*universal_address(any, mapping.port)),
            owner: "superuser".into(),
        };
        let results = client.call(&target, procedure, &binding).await;
        results
            .and_then(|mut results| Ok(results.bool()?))
            .map_err(|error| self.no_answer(error))
    }

    fn no_answer(&self, error: CallError) -> RegistrationError {
        RegistrationError::NoAnswer {
            socket: self.socket.clone(),
            error,
        }
    }
}
