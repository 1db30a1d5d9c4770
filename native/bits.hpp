// Numbers in blocks of 32, in which each number takes as many bits as the block's largest needs.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

namespace fanrank {

constexpr std::size_t BIT_BLOCK = 32;
// Zeros after the last block, so that any number is read as a part of eight bytes.
constexpr std::size_t BIT_MARGIN = 8;

// A number of eight bytes, the lowest first.
inline std::uint64_t eight_bytes(const std::uint8_t* bytes) {
    std::uint64_t number = 0;
    if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(&number, bytes, sizeof number);
    } else {
        for (unsigned byte = 0; byte < 8; ++byte) number |= static_cast<std::uint64_t>(bytes[byte]) << (8 * byte);
    }
    return number;
}

// Throws unless `data` is as long as blocks of these widths, for so many numbers.
inline void check_widths(std::size_t numbers, std::span<const std::uint8_t> widths, std::size_t data) {
    std::size_t bytes = BIT_MARGIN;
    for (const std::uint8_t width : widths) {
        if (width > 32) throw std::invalid_argument("widths: at most 32 bits a number");
        bytes += width * BIT_BLOCK / 8;
    }
    if (widths.size() != (numbers + BIT_BLOCK - 1) / BIT_BLOCK || bytes != data) {
        throw std::invalid_argument("numbers, widths and bits do not fit together");
    }
}

// `bits` is filled; block b has widths[b] bits for each of its numbers, the lowest first.
inline void pack_bits(std::span<const std::uint32_t> numbers, std::span<const std::uint8_t> widths,
                      std::span<std::uint8_t> bits) {
    check_widths(numbers.size(), widths, bits.size());
    std::fill(bits.begin(), bits.end(), std::uint8_t{0});
    std::uint8_t* block = bits.data();
    for (std::size_t first = 0; first < numbers.size(); first += BIT_BLOCK) {
        const std::size_t width = widths[first / BIT_BLOCK], count = std::min(BIT_BLOCK, numbers.size() - first);
        std::uint64_t held = 0;
        std::size_t filled = 0;
        std::uint8_t* byte = block;
        for (std::size_t place = 0; place < count; ++place) {
            held |= static_cast<std::uint64_t>(numbers[first + place]) << filled;
            for (filled += width; filled >= 8; filled -= 8, held >>= 8) *byte++ = static_cast<std::uint8_t>(held);
        }
        if (filled > 0) *byte = static_cast<std::uint8_t>(held);
        block += width * BIT_BLOCK / 8;
    }
}

// The inverse. With `step_bits` above 0 the numbers are steps, and their sums modulo 2^step_bits come out.
template <class Number>
void unpack_bits(std::span<const std::uint8_t> bits, std::span<const std::uint8_t> widths, std::size_t step_bits,
                 std::span<Number> numbers) {
    check_widths(numbers.size(), widths, bits.size());
    if (step_bits > 32) throw std::invalid_argument("step_bits: at most 32");
    const std::uint8_t* block = bits.data();
    // Sums of numbers are added up modulo 2^32, of which 2^step_bits is a divisor.
    const std::uint32_t sum_mask = static_cast<std::uint32_t>((std::uint64_t{1} << step_bits) - 1);
    std::uint32_t sum = 0;
    for (std::size_t first = 0; first < numbers.size(); first += BIT_BLOCK) {
        const std::size_t width = widths[first / BIT_BLOCK], count = std::min(BIT_BLOCK, numbers.size() - first);
        const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
        Number* out = numbers.data() + first;
        for (std::size_t place = 0, bit = 0; place < count; ++place, bit += width) {
            const auto number = static_cast<std::uint32_t>((eight_bytes(block + bit / 8) >> (bit % 8)) & mask);
            out[place] = static_cast<Number>(step_bits == 0 ? number : (sum += number) & sum_mask);
        }
        block += width * BIT_BLOCK / 8;
    }
}

}  // namespace fanrank
