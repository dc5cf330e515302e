// The checksums of runs and payloads (seal.h).
//
// 32 lanes of 16 bytes: block b of 16 bytes goes to lane b mod 32, lane = AESRound(lane) ^ block, where AESRound is one round of
// AES (FIPS 197: SubBytes, ShiftRows, MixColumns) without a key. A round is a bijection, so a change in one block always changes
// its lane, and two changes cancel only when the second is exactly what the round made of the first. In the same way lanes are
// folded: each quarter of a vector over the eight vectors, the four quarters into one, and length and seed in three rounds. So
// eight vectors of 64 bytes are under way at once, and the checksum runs at the speed at which memory can be read.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kv/seal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cofferdam::kv {
namespace {

constexpr size_t kBlock = 16, kLanes = 32, kQuarters = 4, kStride = kBlock * kLanes;
constexpr int kLastRounds = 3;

struct alignas(64) Lanes {
  std::array<std::array<uint8_t, kBlock>, kLanes> lane;
};

// Lanes begin different from each other, so that no two blocks can change places unseen.
constexpr Lanes FirstLanes() {
  Lanes lanes{};
  for (size_t i = 0; i < kLanes; ++i) {
    for (size_t j = 0; j < kBlock; ++j) lanes.lane[i][j] = static_cast<uint8_t>(i * 37 + j * 101 + 11);
  }
  return lanes;
}

struct Kernel {
  // All of `bytes`, of whole strides, into the lanes.
  void (*absorb)(Lanes& lanes, const std::byte* bytes, size_t size);
  // state = AESRound(state) ^ block
  void (*round)(uint8_t* state, const uint8_t* block);
  // Folds the lanes, and then `last`, into `state`.
  void (*fold)(const Lanes& lanes, const uint8_t* last, uint8_t* state);
  // Both, for whole strides; null: there is nothing faster.
  void (*whole)(const Lanes& first, const std::byte* bytes, size_t size, const uint8_t* last, uint8_t* state);
};

constexpr uint8_t Double(uint8_t x) { return static_cast<uint8_t>(unsigned{x} << 1U ^ (unsigned{x} >> 7U) * 0x1bU); }

// From its definition: the inverse in GF(2^8), and an affine map.
constexpr std::array<uint8_t, 256> MakeSubBytes() {
  std::array<uint8_t, 256> table{};
  uint8_t p = 1, q = 1;  // p runs through all that is not zero, q is its inverse
  do {
    p = static_cast<uint8_t>(p ^ Double(p));
    q = static_cast<uint8_t>(q ^ q << 1U);
    q = static_cast<uint8_t>(q ^ q << 2U);
    q = static_cast<uint8_t>(q ^ q << 4U);
    if ((q & 0x80U) != 0) q ^= 0x09U;
    const auto turned = [q](unsigned by) { return static_cast<unsigned>(q << by | q >> (8 - by)); };
    table[p] = static_cast<uint8_t>(q ^ turned(1) ^ turned(2) ^ turned(3) ^ turned(4) ^ 0x63U);
  } while (p != 1);
  table[0] = 0x63;
  return table;
}

void PlainRound(uint8_t* state, const uint8_t* block) {
  static constexpr std::array<uint8_t, 256> kSub = MakeSubBytes();
  std::array<uint8_t, kBlock> out;
  for (size_t column = 0; column < 4; ++column) {
    std::array<uint8_t, 4> c;
    for (size_t row = 0; row < 4; ++row) c[row] = kSub[state[4 * ((column + row) % 4) + row]];
    for (size_t row = 0; row < 4; ++row) {
      const uint8_t next = c[(row + 1) % 4];
      out[4 * column + row] = static_cast<uint8_t>(Double(c[row]) ^ Double(next) ^ next ^ c[(row + 2) % 4] ^ c[(row + 3) % 4] ^
                                                   block[4 * column + row]);
    }
  }
  std::memcpy(state, out.data(), out.size());
}

void PlainAbsorb(Lanes& lanes, const std::byte* bytes, size_t size) {
  const auto* at = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < size; i += kBlock) PlainRound(lanes.lane[i / kBlock % kLanes].data(), at + i);
}

void PlainFold(const Lanes& lanes, const uint8_t* last, uint8_t* state) {
  std::memset(state, 0, kBlock);
  for (size_t quarter = 0; quarter < kQuarters; ++quarter) {
    std::array<uint8_t, kBlock> folded{};
    for (size_t i = quarter; i < kLanes; i += kQuarters) PlainRound(folded.data(), lanes.lane[i].data());
    PlainRound(state, folded.data());
  }
  for (int i = 0; i < kLastRounds; ++i) PlainRound(state, last);
}

#if defined(__x86_64__)
__attribute__((target("aes,sse4.1"))) __m128i Load(const uint8_t* block) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
}

__attribute__((target("aes,sse4.1"))) void AesRound(uint8_t* state, const uint8_t* block) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_aesenc_si128(Load(state), Load(block)));
}

__attribute__((target("aes,sse4.1"))) void AesAbsorb(Lanes& lanes, const std::byte* bytes, size_t size) {
  // Eight lanes at a time stay in registers; the pieces of a run that they skip are in the cache by the next round.
  constexpr size_t kAtOnce = 8;
  for (size_t first = 0; first < kLanes; first += kAtOnce) {
    __m128i state[kAtOnce];
    for (size_t j = 0; j < kAtOnce; ++j) state[j] = _mm_load_si128(reinterpret_cast<const __m128i*>(lanes.lane[first + j].data()));
    for (size_t i = first * kBlock; i < size; i += kStride) {
      for (size_t j = 0; j < kAtOnce; ++j)
        state[j] = _mm_aesenc_si128(state[j], _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i + j * kBlock)));
    }
    for (size_t j = 0; j < kAtOnce; ++j) _mm_store_si128(reinterpret_cast<__m128i*>(lanes.lane[first + j].data()), state[j]);
  }
}

__attribute__((target("aes,sse4.1"))) void AesFold(const Lanes& lanes, const uint8_t* last, uint8_t* state) {
  __m128i folded[kQuarters] = {};
  for (size_t i = 0; i < kLanes; ++i) folded[i % kQuarters] = _mm_aesenc_si128(folded[i % kQuarters], Load(lanes.lane[i].data()));
  __m128i one = _mm_setzero_si128();
  for (const __m128i& quarter : folded) one = _mm_aesenc_si128(one, quarter);
  for (int i = 0; i < kLastRounds; ++i) one = _mm_aesenc_si128(one, Load(last));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), one);
}

// All at once where there is no rest, so that the lanes never leave the registers: runs are short.
__attribute__((target("avx512f,vaes,aes"))) void VaesWhole(const Lanes& first, const std::byte* bytes, size_t size,
                                                           const uint8_t* last, uint8_t* state) {
  constexpr size_t kVectors = kLanes / kQuarters;
  __m512i lanes[kVectors];
#pragma GCC unroll 8
  for (size_t j = 0; j < kVectors; ++j) lanes[j] = _mm512_load_si512(first.lane[kQuarters * j].data());
  for (size_t i = 0; i < size; i += kStride) {
#pragma GCC unroll 8
    for (size_t j = 0; j < kVectors; ++j) lanes[j] = _mm512_aesenc_epi128(lanes[j], _mm512_loadu_si512(bytes + i + 64 * j));
  }
  __m512i folded = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (size_t j = 0; j < kVectors; ++j) folded = _mm512_aesenc_epi128(folded, lanes[j]);
  __m128i one = _mm_aesenc_si128(_mm_setzero_si128(), _mm512_castsi512_si128(folded));
  one = _mm_aesenc_si128(one, _mm512_extracti32x4_epi32(folded, 1));
  one = _mm_aesenc_si128(one, _mm512_extracti32x4_epi32(folded, 2));
  one = _mm_aesenc_si128(one, _mm512_extracti32x4_epi32(folded, 3));
  for (int i = 0; i < kLastRounds; ++i) one = _mm_aesenc_si128(one, _mm_loadu_si128(reinterpret_cast<const __m128i*>(last)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), one);
}
#endif

// By ChecksumKernel.
constexpr Kernel kKernels[] = {
    {.absorb = PlainAbsorb, .round = PlainRound, .fold = PlainFold, .whole = nullptr},
#if defined(__x86_64__)
    {.absorb = AesAbsorb, .round = AesRound, .fold = AesFold, .whole = nullptr},
    {.absorb = AesAbsorb, .round = AesRound, .fold = AesFold, .whole = VaesWhole},
#endif
};
const Kernel& KernelOf(ChecksumKernel kernel) { return kKernels[static_cast<size_t>(kernel)]; }

uint64_t Checksum(const Kernel& kernel, std::span<const std::byte> bytes, uint64_t seed) {
  static constexpr Lanes kFirst = FirstLanes();
  const std::array<uint64_t, 2> end{bytes.size(), seed};
  std::array<uint8_t, kBlock> last, state;
  std::memcpy(last.data(), end.data(), sizeof end);
  const size_t whole = bytes.size() / kStride * kStride;
  if (kernel.whole != nullptr && whole == bytes.size()) {
    kernel.whole(kFirst, bytes.data(), whole, last.data(), state.data());
  } else {
    Lanes lanes = kFirst;
    kernel.absorb(lanes, bytes.data(), whole);
    for (size_t i = whole, lane = 0; i < bytes.size(); i += kBlock, ++lane) {
      std::array<uint8_t, kBlock> rest{};
      std::memcpy(rest.data(), bytes.data() + i, std::min(kBlock, bytes.size() - i));
      kernel.round(lanes.lane[lane].data(), rest.data());
    }
    kernel.fold(lanes, last.data(), state.data());
  }
  std::array<uint64_t, 2> halves;
  std::memcpy(halves.data(), state.data(), sizeof halves);
  return halves[0] ^ halves[1];
}

uint64_t Checksum(std::span<const std::byte> bytes, uint64_t seed) {
  static const Kernel& kBest = KernelOf(BestChecksumKernel(ThisProcessor()));
  return Checksum(kBest, bytes, seed);
}

}  // namespace

ProcessorFeatures ThisProcessor() {
#if defined(__x86_64__)
  return {.aes = __builtin_cpu_supports("aes") != 0,
          .sse41 = __builtin_cpu_supports("sse4.1") != 0,
          .vaes = __builtin_cpu_supports("vaes") != 0,
          .avx512f = __builtin_cpu_supports("avx512f") != 0};
#else
  return {};
#endif
}

ChecksumKernel BestChecksumKernel(const ProcessorFeatures& has) {
  if (!has.aes || !has.sse41) return ChecksumKernel::kPlain;
  return has.vaes && has.avx512f ? ChecksumKernel::kVaes : ChecksumKernel::kAes;
}

uint64_t RunChecksum(std::span<const std::byte> run) { return Checksum(run, 0); }

uint64_t RunChecksumBy(ChecksumKernel kernel, std::span<const std::byte> run) { return Checksum(KernelOf(kernel), run, 0); }

void RunChecksums(const Layout& layout, std::span<const std::byte> payload, std::span<uint64_t> sums) {
  CD_CHECK(payload.size() == layout.payload_bytes() && sums.size() == layout.runs(), "a payload has its layout's size");
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = RunChecksum(payload.subspan(i * layout.run_bytes(), layout.run_bytes()));
}

uint64_t RootChecksum(const Layout& layout, std::span<const std::byte> payload, std::span<const uint64_t> sums) {
  const auto padding = payload.subspan(layout.runs() * layout.run_bytes());
  return Checksum(std::as_bytes(sums), Checksum(padding, 0));
}

uint64_t PayloadChecksum(const Layout& layout, std::span<const std::byte> payload) {
  std::vector<uint64_t> sums(layout.runs());
  RunChecksums(layout, payload, sums);
  return RootChecksum(layout, payload, sums);
}

}  // namespace cofferdam::kv
