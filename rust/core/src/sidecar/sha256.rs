//! SHA-256 of two texts side by side. FIPS 180-4.
//!
//! A processor waits for each step of a digest before it begins the next; steps of another digest fit in between, so that
//! two take hardly longer than one. `bench_split_and_join` shows it.

use std::fmt::Write as _;

use sha2::block_api::compress256;

/// Bytes that are taken at a time.
const BLOCK: usize = 64;
type Block = [u8; BLOCK];

/// A digest of the bytes so far.
#[derive(Clone)]
pub(super) struct Sha256 {
    state: [u32; 8],
    /// The bytes behind the last whole block.
    held: Block,
    held_bytes: usize,
    /// Whole blocks before them.
    blocks: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self {
            state: START,
            held: [0; BLOCK],
            held_bytes: 0,
            blocks: 0,
        }
    }
}

impl Sha256 {
    /// Takes the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        let (blocks, rest) = self.fill(bytes).as_chunks();
        self.take(blocks);
        self.hold(rest);
    }

    /// The digest in hexadecimal digits.
    pub(super) fn spell(&self) -> String {
        let mut last = self.clone();
        last.update(&[0x80]);
        while last.held_bytes != BLOCK - 8 {
            last.update(&[0]);
        }
        let bits = (self.blocks * BLOCK as u64 + self.held_bytes as u64) * 8;
        last.update(&bits.to_be_bytes());
        last.state.iter().fold(String::new(), |mut text, word| {
            // Writing to a string does not fail.
            let _ = write!(text, "{word:08x}");
            text
        })
    }

    /// Takes what fills the block that was begun, and returns the rest.
    fn fill<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        if self.held_bytes == 0 {
            return bytes;
        }
        let missing = BLOCK - self.held_bytes;
        let (head, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
        self.hold(head);
        if self.held_bytes == BLOCK {
            self.held_bytes = 0;
            self.take(&[self.held]);
        }
        rest
    }

    fn take(&mut self, blocks: &[Block]) {
        compress256(&mut self.state, blocks);
        self.blocks += blocks.len() as u64;
    }

    /// Keeps bytes that fit into the block.
    fn hold(&mut self, bytes: &[u8]) {
        let room = self.held.iter_mut().skip(self.held_bytes);
        room.zip(bytes).for_each(|(held, &byte)| *held = byte);
        self.held_bytes += bytes.len();
    }
}

/// Adds the same bytes to two digests.
pub(super) fn update_both(left: &mut Sha256, right: &mut Sha256, bytes: &[u8]) {
    // Where blocks begin differs between the two.
    let (of_left, left_rest) = left.fill(bytes).as_chunks();
    let (of_right, right_rest) = right.fill(bytes).as_chunks();
    let count = of_left.len().min(of_right.len());
    let (of_left, left_more) = of_left.split_at_checked(count).unwrap_or_default();
    let (of_right, right_more) = of_right.split_at_checked(count).unwrap_or_default();
    compress_both(&mut left.state, of_left, &mut right.state, of_right);
    for (digest, more, rest) in [(left, left_more, left_rest), (right, right_more, right_rest)] {
        digest.blocks += count as u64;
        digest.take(more);
        digest.hold(rest);
    }
}

/// Adds as many blocks to each of two states.
fn compress_both(left: &mut [u32; 8], of_left: &[Block], right: &mut [u32; 8], of_right: &[Block]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("sha")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
    {
        // SAFETY: the processor has what the function is compiled for.
        #[allow(unsafe_code, reason = "there is no other way to call it")]
        return unsafe { x86::compress_both(left, of_left, right, of_right) };
    }
    compress256(left, of_left);
    compress256(right, of_right);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_extract_epi32, _mm_set_epi32, _mm_set_epi64x,
        _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8,
        _mm_shuffle_epi32,
    };

    use super::{Block, ROUNDS};

    /// The words of a state, as the instructions want them.
    #[derive(Clone, Copy)]
    struct State {
        abef: __m128i,
        cdgh: __m128i,
    }

    #[target_feature(enable = "sha,ssse3,sse4.1")]
    pub(super) fn compress_both(
        left: &mut [u32; 8],
        of_left: &[Block],
        right: &mut [u32; 8],
        of_right: &[Block],
    ) {
        let mut states = [load(left), load(right)];
        for blocks in of_left.iter().zip(of_right) {
            let before = states;
            let mut words = [words_of(blocks.0), words_of(blocks.1)];
            for (quarter, rounds) in ROUNDS.iter().enumerate() {
                // Words and states by number stay in registers.
                for (place, constants) in rounds.iter().enumerate() {
                    let [k0, k1, k2, k3] = constants.map(u32::cast_signed);
                    let constants = _mm_set_epi32(k3, k2, k1, k0);
                    for (state, words) in states.iter_mut().zip(&mut words) {
                        if quarter > 0 {
                            words[place] = next_word(words, place);
                        }
                        let sum = _mm_add_epi32(words[place], constants);
                        state.cdgh = _mm_sha256rnds2_epu32(state.cdgh, state.abef, sum);
                        let high = _mm_shuffle_epi32::<0x0e>(sum);
                        state.abef = _mm_sha256rnds2_epu32(state.abef, state.cdgh, high);
                    }
                }
            }
            for (state, before) in states.iter_mut().zip(before) {
                state.abef = _mm_add_epi32(state.abef, before.abef);
                state.cdgh = _mm_add_epi32(state.cdgh, before.cdgh);
            }
        }
        *left = store(states[0]);
        *right = store(states[1]);
    }

    /// The four words in the place of those that were used four steps before.
    #[target_feature(enable = "sha,ssse3")]
    fn next_word(words: &[__m128i; 4], place: usize) -> __m128i {
        let [first, second, third, fourth] = std::array::from_fn(|i| words[(place + i) % 4]);
        let behind = _mm_alignr_epi8::<4>(fourth, third);
        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(first, second), behind);
        _mm_sha256msg2_epu32(sum, fourth)
    }

    #[target_feature(enable = "ssse3")]
    fn words_of(block: &Block) -> [__m128i; 4] {
        let big_endian = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
        let (halves, _) = block.as_chunks::<8>();
        let half = |i: usize| halves.get(i).map_or(0, |half| i64::from_le_bytes(*half));
        std::array::from_fn(|i| _mm_shuffle_epi8(_mm_set_epi64x(half(2 * i + 1), half(2 * i)), big_endian))
    }

    #[target_feature(enable = "sse2")]
    #[allow(clippy::many_single_char_names, reason = "the standard names them so")]
    fn load(state: &[u32; 8]) -> State {
        let [a, b, c, d, e, f, g, h] = state.map(u32::cast_signed);
        State {
            abef: _mm_set_epi32(a, b, e, f),
            cdgh: _mm_set_epi32(c, d, g, h),
        }
    }

    #[target_feature(enable = "sse4.1")]
    #[allow(clippy::many_single_char_names, reason = "the standard names them so")]
    fn store(state: State) -> [u32; 8] {
        let [f, e, b, a] = lanes(state.abef);
        let [h, g, d, c] = lanes(state.cdgh);
        [a, b, c, d, e, f, g, h]
    }

    #[target_feature(enable = "sse4.1")]
    fn lanes(words: __m128i) -> [u32; 4] {
        [
            _mm_extract_epi32::<0>(words),
            _mm_extract_epi32::<1>(words),
            _mm_extract_epi32::<2>(words),
            _mm_extract_epi32::<3>(words),
        ]
        .map(i32::cast_unsigned)
    }
}

/// FIPS 180-4 §5.3.3.
const START: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Four quarters of four steps of four rounds. FIPS 180-4 §4.2.2.
#[cfg(target_arch = "x86_64")]
const ROUNDS: [[[u32; 4]; 4]; 4] = [
    [
        [0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5],
        [0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5],
        [0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3],
        [0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174],
    ],
    [
        [0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc],
        [0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da],
        [0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7],
        [0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967],
    ],
    [
        [0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13],
        [0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85],
        [0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3],
        [0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070],
    ],
    [
        [0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5],
        [0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3],
        [0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208],
        [0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2],
    ],
];

#[cfg(test)]
mod tests {
    use sha2::Digest as _;

    use super::*;

    fn expected(bytes: &[u8]) -> String {
        let digest = sha2::Sha256::digest(bytes);
        digest
            .iter()
            .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    #[test]
    fn two_digests_are_those_that_each_would_be_alone() {
        let text: Vec<u8> = (0..1000u32).map(|i| (i * 31 % 251) as u8).collect();
        for ahead in [0, 1, 63, 64, 65, 127, 200] {
            for len in (0..200).chain([255, 256, 257, 600]) {
                let (mut left, mut right) = (Sha256::default(), Sha256::default());
                left.update(&text[..ahead]);
                update_both(&mut left, &mut right, &text[..len]);
                assert_eq!(right.spell(), expected(&text[..len]), "{len}");
                update_both(&mut left, &mut right, &text[len..]);
                assert_eq!(
                    left.spell(),
                    expected(&[&text[..ahead], &text].concat()),
                    "{ahead} {len}"
                );
                assert_eq!(right.spell(), expected(&text), "{ahead} {len}");
            }
        }
    }
}
