//! The part of pprof's profile.proto that is needed to encode counts by stack.
//!
//! The field numbers are from github.com/google/pprof/proto/profile.proto.

use prost::Message;
use rustc_hash::FxHashMap;

use crate::names::Frame;

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<PprofSample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
}

/// One stack to encode.
pub struct Sample {
    /// The frames, innermost first.
    pub frames: Vec<Frame>,
    /// The value: the number of threads with this stack, or another count.
    pub count: i64,
    /// Labels as (key, value).
    pub labels: Vec<(String, String)>,
}

/// Encode samples of this type and unit, such as `threads` and `count`, and return the uncompressed bytes.
pub fn encode(
    samples: Vec<Sample>,
    (kind, unit): (&str, &str),
    taken_at_ns: i64,
    duration_ns: i64,
) -> Vec<u8> {
    let mut builder = Builder::default();
    builder.string("");
    let sample_type = ValueType { r#type: builder.string(kind), unit: builder.string(unit) };
    let mut profile = Profile {
        sample_type: vec![sample_type],
        time_nanos: taken_at_ns,
        duration_nanos: duration_ns,
        ..Default::default()
    };
    for sample in samples {
        let location_id = sample.frames.iter().map(|frame| builder.location(frame)).collect();
        let label = sample
            .labels
            .iter()
            .map(|(key, value)| Label { key: builder.string(key), text: builder.string(value) })
            .collect();
        profile.sample.push(PprofSample { location_id, value: vec![sample.count], label });
    }
    profile.location = builder.locations;
    profile.function = builder.functions;
    profile.string_table = builder.strings;
    profile.encode_to_vec()
}

/// Assigns an id to each distinct string, function and location.
#[derive(Default)]
struct Builder {
    strings: Vec<String>,
    string_ids: FxHashMap<String, i64>,
    functions: Vec<Function>,
    locations: Vec<Location>,
    location_ids: FxHashMap<(String, String), u64>,
}

impl Builder {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(id) = self.string_ids.get(text) {
            return *id;
        }
        let id = self.strings.len() as i64;
        self.strings.push(text.to_owned());
        self.string_ids.insert(text.to_owned(), id);
        id
    }

    fn location(&mut self, frame: &Frame) -> u64 {
        let name = frame
            .function
            .as_deref()
            .map_or_else(|| format!("{}+{:#x}", frame.module, frame.offset), str::to_owned);
        let key = (name, frame.module.to_string());
        if let Some(id) = self.location_ids.get(&key) {
            return *id;
        }
        let id = self.locations.len() as u64 + 1;
        let name = self.string(&key.0);
        let filename = self.string(&key.1);
        self.functions.push(Function { id, name, system_name: name, filename });
        self.locations.push(Location { id, address: frame.offset, line: vec![Line { function_id: id }] });
        self.location_ids.insert(key, id);
        id
    }
}
