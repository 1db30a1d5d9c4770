// BLAKE2b (RFC 7693) with a digest of eight bytes and no key: the hashes of ids.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fanrank {

class Blake2b {
public:
    // The digest as a number, its first byte the lowest.
    static std::uint64_t hash(std::string_view text) {
        std::array<std::uint64_t, 8> state = START;
        state[0] ^= 0x01010000 ^ 8;
        std::uint64_t taken = 0;
        do {
            const std::size_t size = std::min(text.size(), BLOCK);
            std::array<unsigned char, BLOCK> block{};
            if (size > 0) std::memcpy(block.data(), text.data(), size);
            text.remove_prefix(size);
            mix(state, block, taken += size, text.empty());
        } while (!text.empty());
        return state[0];
    }

private:
    static constexpr std::size_t BLOCK = 128;
    static constexpr std::array<std::uint64_t, 8> START = {
        0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1,
        0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179};
    static constexpr unsigned char ORDER[10][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

    static std::uint64_t number_at(const unsigned char* bytes) {
        std::uint64_t number = 0;
        for (int at = 7; at >= 0; --at) number = number << 8 | bytes[at];
        return number;
    }

    static void mix(std::array<std::uint64_t, 8>& state, const std::array<unsigned char, BLOCK>& block,
                    std::uint64_t taken, bool last) {
        std::uint64_t m[16], v[16];
        for (std::size_t at = 0; at < 16; ++at) m[at] = number_at(block.data() + 8 * at);
        for (std::size_t at = 0; at < 8; ++at) v[at] = state[at], v[at + 8] = START[at];
        v[12] ^= taken;
        if (last) v[14] = ~v[14];
        const auto turn = [&](int a, int b, int c, int d, std::uint64_t x, std::uint64_t y) {
            v[a] += v[b] + x;
            v[d] = std::rotr(v[d] ^ v[a], 32);
            v[c] += v[d];
            v[b] = std::rotr(v[b] ^ v[c], 24);
            v[a] += v[b] + y;
            v[d] = std::rotr(v[d] ^ v[a], 16);
            v[c] += v[d];
            v[b] = std::rotr(v[b] ^ v[c], 63);
        };
        for (int round = 0; round < 12; ++round) {
            const auto& s = ORDER[round % 10];
            turn(0, 4, 8, 12, m[s[0]], m[s[1]]);
            turn(1, 5, 9, 13, m[s[2]], m[s[3]]);
            turn(2, 6, 10, 14, m[s[4]], m[s[5]]);
            turn(3, 7, 11, 15, m[s[6]], m[s[7]]);
            turn(0, 5, 10, 15, m[s[8]], m[s[9]]);
            turn(1, 6, 11, 12, m[s[10]], m[s[11]]);
            turn(2, 7, 8, 13, m[s[12]], m[s[13]]);
            turn(3, 4, 9, 14, m[s[14]], m[s[15]]);
        }
        for (std::size_t at = 0; at < 8; ++at) state[at] ^= v[at] ^ v[at + 8];
    }
};

}  // namespace fanrank
