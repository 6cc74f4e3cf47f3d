//! A customer who has just signed up, and what the first days bring: a volume and its key rings.

use super::{Customer, Service, base64};
use firn_format::FamilyId;
use firn_seal::{KeyRing, Recipient, RecipientKind};
use serde_json::{Value, json};

/// The one customer of a new service, with a token of the owner.
pub async fn customer() -> (Service, Customer, String) {
    let service = Service::new();
    let customer = service.sign_up("ada@one.example").await;
    let token = service.log_in(&customer).await;
    (service, customer, token)
}

/// What asks for a volume.
pub fn volume(name: &str) -> Value {
    json!({ "name": name, "bucket": { "kind": "managed", "region": "eu-central-1" } })
}

/// Random bytes of the service's machine.
pub fn entropy(service: &Service) -> impl FnMut(&mut [u8]) + use<> {
    let env = service.env.clone();
    move |bytes: &mut [u8]| {
        for chunk in bytes.chunks_mut(32) {
            chunk.copy_from_slice(&env.random_bytes::<32>()[..chunk.len()]);
        }
    }
}

/// Who may open a ring when everything else is lost.
pub fn recovery(customer: &Customer) -> Recipient {
    Recipient {
        name: "recovery".into(),
        kind: RecipientKind::Recovery,
        public: customer.phrase.recovery_secret().public(),
    }
}

/// The first ring of a family, and its successor.
pub fn rings(service: &Service, customer: &Customer, volume: &str) -> (String, String) {
    let (signer, mut entropy) = (customer.phrase.signing_key(), entropy(service));
    let (family, volume) = (FamilyId([5; 16]), volume.parse().unwrap());
    let recipients = vec![recovery(customer)];
    let (first, keys) = KeyRing::create(family, volume, recipients, &signer, &mut entropy).unwrap();
    let first = first.verify(&signer.public()).unwrap();
    let (second, _) = first.rotate(&keys, &signer, &mut entropy).unwrap();
    (base64(&first.ring().encode()), base64(&second.encode()))
}
