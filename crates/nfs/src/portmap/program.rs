//! The port mapper as a program we serve.

use super::{
    Mapping, PROGRAM, PROTOCOL_TCP, PROTOCOL_UDP, Text, WireBinding, WireMapping, networks, parse_universal,
    protocol_number, universal_address,
};
use crate::{
    rpc::{Program, Refusal, Reply, Request, Transport},
    xdr::Decode,
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use std::{ops::RangeInclusive, sync::RwLock};

/// Answers where our programs listen. Nobody else can register: SET and UNSET are refused, and calls are not forwarded,
/// which port mappers of old did and attackers used as an amplifier.
pub struct PortMapper {
    env: Env,
    mappings: RwLock<Vec<Mapping>>,
}

impl PortMapper {
    /// A port mapper that knows `mappings`.
    pub fn new(env: &Env, mappings: Vec<Mapping>) -> Self {
        Self {
            env: env.clone(),
            mappings: RwLock::new(mappings),
        }
    }

    /// Replaces what is known, when listeners have changed.
    pub fn set(&self, mappings: Vec<Mapping>) {
        *self.mappings.write().expect("no panic under this lock") = mappings;
    }

    fn mappings(&self) -> Vec<Mapping> {
        self.mappings.read().expect("no panic under this lock").clone()
    }

    /// The port of a program; of another version if that one is not served, so that the caller learns from the program
    /// itself which versions are.
    fn port(&self, program: u32, version: u32, transport: Transport) -> Option<u16> {
        let mappings = self.mappings();
        let candidates = || {
            mappings
                .iter()
                .filter(move |mapping| mapping.program == program && mapping.transport == transport)
        };
        candidates()
            .find(|mapping| mapping.version == version)
            .or_else(|| candidates().next())
            .map(|mapping| mapping.port)
    }

    fn call_port_mapper(&self, mut request: Request) -> Result<Reply, Refusal> {
        match request.procedure {
            0 => Ok(Reply::success(&())),
            SET | UNSET => Ok(Reply::failure(&false)),
            GET_PORT => {
                let asked = WireMapping::decode(&mut request.arguments)?;
                let transport = match asked.protocol {
                    PROTOCOL_TCP => Some(Transport::Tcp),
                    PROTOCOL_UDP => Some(Transport::Udp),
                    _ => None,
                };
                let port = transport.and_then(|transport| self.port(asked.program, asked.version, transport));
                Ok(Reply::success(&u32::from(port.unwrap_or(0))))
            }
            DUMP => Ok(Reply::success(&self.dump_mappings())),
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }

    fn call_rpcbind(&self, mut request: Request) -> Result<Reply, Refusal> {
        match (request.version, request.procedure) {
            (_, 0) => Ok(Reply::success(&())),
            (_, SET | UNSET) => Ok(Reply::failure(&false)),
            (_, GET_ADDRESS) => {
                let asked = WireBinding::decode(&mut request.arguments)?;
                Ok(Reply::success(&self.address(&asked, false)))
            }
            (4, GET_VERSION_ADDRESS) => {
                let asked = WireBinding::decode(&mut request.arguments)?;
                Ok(Reply::success(&self.address(&asked, true)))
            }
            (_, DUMP) => Ok(Reply::success(&self.dump_bindings())),
            // Seconds of the wall clock, in 32 bits by definition of the protocol.
            (_, GET_TIME) => Ok(Reply::success(&((self.env.wall().as_millis() / 1000) as u32))),
            _ => Err(Refusal::ProcedureUnavailable),
        }
    }

    /// The universal address of a program, empty if there is none. Callers name the address by which they reached us
    /// where they know it; else the host part means "where you asked".
    fn address(&self, asked: &WireBinding, exact: bool) -> Text {
        let transports = [Transport::Tcp, Transport::Udp];
        let named = transports.into_iter().find_map(|transport| {
            let names = networks(transport);
            let (_, any) = names
                .into_iter()
                .find(|(name, _)| name.as_bytes() == &asked.network.0[..])?;
            Some((transport, any))
        });
        let Some((transport, any)) = named else {
            return Text::default();
        };
        let known = !exact
            || self.mappings().iter().any(|mapping| {
                (mapping.program, mapping.version, mapping.transport)
                    == (asked.program, asked.version, transport)
            });
        let port = self
            .port(asked.program, asked.version, transport)
            .filter(|_| known);
        let Some(port) = port else {
            return Text::default();
        };
        let host = parse_universal(&asked.address.0).map_or(any, |(host, _)| host);
        Text::from(&*universal_address(host, port))
    }

    fn dump_mappings(&self) -> Vec<WireMapping> {
        let wire = |mapping: Mapping| WireMapping {
            program: mapping.program,
            version: mapping.version,
            protocol: protocol_number(mapping.transport),
            port: mapping.port.into(),
        };
        self.mappings().into_iter().map(wire).collect()
    }

    fn dump_bindings(&self) -> Vec<WireBinding> {
        let wire = |mapping: Mapping| {
            networks(mapping.transport).map(|(network, any)| WireBinding {
                program: mapping.program,
                version: mapping.version,
                network: network.into(),
                address: Text::from(&*universal_address(any, mapping.port)),
                owner: Text::from(Bytes::from_static(b"superuser")),
            })
        };
        self.mappings().into_iter().flat_map(wire).collect()
    }
}

pub(super) const SET: u32 = 1;
pub(super) const UNSET: u32 = 2;
pub(super) const GET_PORT: u32 = 3;
pub(super) const GET_ADDRESS: u32 = 3;
const DUMP: u32 = 4;
const GET_TIME: u32 = 6;
const GET_VERSION_ADDRESS: u32 = 9;

#[async_trait]
impl Program for PortMapper {
    fn number(&self) -> u32 {
        PROGRAM
    }

    fn name(&self) -> &'static str {
        "portmap"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        2..=4
    }

    fn procedure_name(&self, version: u32, procedure: u32) -> Option<&'static str> {
        match (version, procedure) {
            (_, 0) => Some("NULL"),
            (_, SET) => Some("SET"),
            (_, UNSET) => Some("UNSET"),
            (2, GET_PORT) => Some("GETPORT"),
            (_, GET_ADDRESS) => Some("GETADDR"),
            (_, DUMP) => Some("DUMP"),
            (3 | 4, GET_TIME) => Some("GETTIME"),
            (4, GET_VERSION_ADDRESS) => Some("GETVERSADDR"),
            _ => None,
        }
    }

    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        if request.version == 2 {
            self.call_port_mapper(request)
        } else {
            self.call_rpcbind(request)
        }
    }
}
