//! Objects in stores: S3 and what speaks its protocol (MinIO, R2), Google Cloud Storage, Azure Blob Storage.
//!
//! An object is written part by part and is there when it is whole: what fails or is interrupted leaves nothing, neither an
//! object nor parts that are paid for. Keys are taken from the environment, and are in no message.

/// Requests to a store.
mod http;

/// Where an object is.
mod place;

/// What a store said, for people.
mod told;

/// Writing one.
mod upload;

pub use place::ObjectPlace;
pub use upload::{ObjectWriter, Upload};
