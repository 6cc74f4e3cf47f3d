//! A reply of a query-protocol service as a tree of elements, read by quick-xml.
//!
//! Elements are looked up by name wherever they stand: the replies read here use no name twice with two meanings. What a service
//! answers is input from outside: the depth of a document is bounded here, its length where it is received.

use quick_xml::{
    Reader,
    events::{BytesRef, Event},
};

/// Deepest nesting taken. Replies of EC2 have some ten levels.
const DEPTH_MAX: usize = 64;

/// An element: its name without a prefix, its text, and what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    name: String,
    text: String,
    children: Vec<Element>,
}

impl Element {
    /// Reads a document; the element returned holds its root. `None` if it is no well-formed XML, or nested too deeply.
    pub(crate) fn read(document: &[u8]) -> Option<Self> {
        let mut reader = Reader::from_str(std::str::from_utf8(document).ok()?);
        let mut open = vec![Self::default()];
        loop {
            match reader.read_event().ok()? {
                Event::Start(start) => {
                    if open.len() > DEPTH_MAX {
                        return None;
                    }
                    open.push(Self::named(start.local_name().as_ref())?);
                }
                Event::Empty(empty) => {
                    let element = Self::named(empty.local_name().as_ref())?;
                    open.last_mut()?.children.push(element);
                }
                Event::End(_) => {
                    let mut element = open.pop()?;
                    element.text = element.text.trim().to_owned();
                    open.last_mut()?.children.push(element);
                }
                Event::Text(text) => open.last_mut()?.text.push_str(&text.decode().ok()?),
                Event::CData(data) => open.last_mut()?.text.push_str(&data.decode().ok()?),
                Event::GeneralRef(reference) => open.last_mut()?.text.push(resolved(&reference)?),
                Event::Eof => break,
                Event::Decl(_) | Event::Comment(_) | Event::PI(_) | Event::DocType(_) => {}
            }
        }
        let document = open.pop()?;
        (open.is_empty() && !document.children.is_empty()).then_some(document)
    }

    fn named(name: &[u8]) -> Option<Self> {
        Some(Self {
            name: std::str::from_utf8(name).ok()?.to_owned(),
            ..Self::default()
        })
    }

    /// The text of the first element of this name.
    pub(crate) fn first(&self, name: &str) -> Option<String> {
        self.find(name).map(|element| element.text.clone())
    }

    fn find(&self, name: &str) -> Option<&Self> {
        self.children.iter().find_map(|child| {
            if child.name == name {
                Some(child)
            } else {
                child.find(name)
            }
        })
    }

    /// The items of all lists of this name, each whole, in whatever order its elements are.
    pub(crate) fn items(&self, list: &str) -> Vec<&Self> {
        let mut found = Vec::new();
        for child in &self.children {
            if child.name == list {
                found.extend(child.children.iter().filter(|item| item.name == "item"));
            } else {
                found.extend(child.items(list));
            }
        }
        found
    }

    /// The value of a resource's tag.
    pub(crate) fn tag(&self, key: &str) -> Option<String> {
        let mut tags = self.items("tagSet").into_iter();
        let tag = tags.find(|tag| tag.first("key").as_deref() == Some(key))?;
        tag.first("value")
    }
}

/// The character a reference stands for: one of the five of XML, or one by number. Documents that define others are refused.
fn resolved(reference: &BytesRef<'_>) -> Option<char> {
    if let Some(character) = reference.resolve_char_ref().ok()? {
        return Some(character);
    }
    match &*reference.decode().ok()? {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Element> {
        Element::read(text.as_bytes())
    }

    #[test]
    fn elements_are_found_by_name_and_references_resolved_once() {
        let xml = read(
            "<?xml version=\"1.0\"?><R xmlns=\"urn:x\"><a>1 &amp;lt; &#50;</a><item><id> x </id></item><item><id>y</id></item></R>",
        )
        .unwrap();
        assert_eq!(xml.first("a").as_deref(), Some("1 &lt; 2"));
        assert_eq!(xml.first("id").as_deref(), Some("x"));
        assert_eq!(xml.first("none"), None);
    }

    #[test]
    fn items_are_those_of_the_list_and_not_of_lists_in_it() {
        let xml = read(
            "<R><set><item><id>1</id></item> <item><in><item><id>2</id></item></in><id>3</id></item><item/></set><set/>\
             <set><item><id>4</id></item></set></R>",
        )
        .unwrap();
        let items = xml.items("set");
        let ids: Vec<_> = items.iter().map(|item| item.first("id")).collect();
        assert_eq!(ids.len(), 4);
        assert_eq!((ids[0].as_deref(), ids[3].as_deref()), (Some("1"), Some("4")));
        assert_eq!(xml.items("none").len(), 0);
    }

    #[test]
    fn tags_are_read_in_either_order() {
        let tags = read(
            "<R><tagSet><item><key>a</key><value>1</value></item><item><value>&lt;</value><key>b</key></item></tagSet></R>",
        )
        .unwrap();
        assert_eq!(tags.tag("b").as_deref(), Some("<"));
        assert_eq!(tags.tag("c"), None);
    }

    #[test]
    fn what_is_no_document_or_too_deep_is_refused() {
        for text in ["", "text", "<a>", "<a></b>", "<a>&unknown;</a>"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(Element::read(b"<a>\xff</a>"), None);
        assert!(read(&format!("{}{}", "<a>".repeat(60), "</a>".repeat(60))).is_some());
        assert_eq!(read(&format!("{}{}", "<a>".repeat(70), "</a>".repeat(70))), None);
    }
}
