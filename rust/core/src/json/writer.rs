//! Compact serialisation in JavaScript's spelling and key order. Spec 10 §1.1.

use std::borrow::Cow;
use std::collections::HashMap;

use super::number::{write_double, write_integer};
use super::tape::{Elements, Kind, Node};
use super::text::{array_index, write_string};

/// Objects with more members look for repeated keys by hash.
const FEW_MEMBERS: usize = 16;

/// Brings members into writing order: index-like keys first, ascending, the others as they are.
pub fn order_keys<K: AsRef<[u8]>, V>(members: &mut [(K, V)]) {
    let index = |member: &(K, V)| array_index(member.0.as_ref());
    if members.iter().any(|member| index(member).is_some()) {
        members.sort_by_key(|member| index(member).map_or((1, 0), |i| (0, i)));
    }
}

type Member<'a> = (Cow<'a, [u8]>, Node<'a>);

/// The members of an object as JavaScript holds them: the last value of a repeated key at its first place.
fn distinct_members<'a>(object: Node<'a>) -> Vec<Member<'a>> {
    let mut members: Vec<Member<'a>> = Vec::new();
    let mut places: HashMap<Cow<'a, [u8]>, usize> = HashMap::new();
    for (key, value) in object.members() {
        let key = key.text().unwrap_or_default();
        let place = if members.len() <= FEW_MEMBERS {
            members.iter().position(|(known, _)| *known == key)
        } else {
            if places.is_empty() {
                places.extend(
                    members
                        .iter()
                        .enumerate()
                        .map(|(at, (known, _))| (known.clone(), at)),
                );
            }
            places.get(&key).copied()
        };
        if let Some(member) = place.and_then(|at| members.get_mut(at)) {
            member.1 = value;
            continue;
        }
        if !places.is_empty() {
            places.insert(key.clone(), members.len());
        }
        members.push((key, value));
    }
    members
}

enum Open<'a> {
    Array(Elements<'a>),
    Object(std::vec::IntoIter<Member<'a>>),
}

/// Appends the value as compact JSON. `replace` may write a member of the outermost object itself and say so.
pub fn write_node(node: Node<'_>, out: &mut Vec<u8>, replace: &dyn Fn(&[u8], &mut Vec<u8>) -> bool) {
    let mut open: Vec<Open<'_>> = Vec::new();
    let mut next = Some(node);
    loop {
        if let Some(node) = next.take() {
            match node.kind() {
                Kind::Null | Kind::Boolean => out.extend_from_slice(node.raw().unwrap_or_default()),
                Kind::Number => match (node.raw(), node.safe_integer()) {
                    (None, Some(value)) => write_integer(value, out),
                    _ => write_double(node.number().unwrap_or_default(), out),
                },
                Kind::Text => node.push_text_literal(out),
                Kind::Array => {
                    if !node.push_packed_array(out) {
                        out.push(b'[');
                        open.push(Open::Array(node.elements()));
                    }
                }
                Kind::Object => {
                    out.push(b'{');
                    let mut members = distinct_members(node);
                    order_keys(&mut members);
                    open.push(Open::Object(members.into_iter()));
                }
            }
        }
        let outermost = open.len() == 1;
        // Strings end in a quote, so a bracket at the end is a bracket.
        let first = matches!(out.last(), Some(b'[' | b'{'));
        let closed = match open.last_mut() {
            None => return,
            Some(Open::Array(elements)) => {
                next = elements.next();
                if next.is_some() && !first {
                    out.push(b',');
                }
                next.is_none().then_some(b']')
            }
            Some(Open::Object(members)) => {
                let member = members.next();
                if let Some((key, value)) = &member {
                    if !first {
                        out.push(b',');
                    }
                    write_string(key, out);
                    out.push(b':');
                    next = (!(outermost && replace(key, out))).then_some(*value);
                }
                member.is_none().then_some(b'}')
            }
        };
        if let Some(bracket) = closed {
            out.push(bracket);
            open.pop();
        }
    }
}
