"""Sums of product codes are the same, whatever the processor has."""

import os
import platform
import subprocess
from pathlib import Path

PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>
#include "code_blocks.hpp"
using namespace kernels;

int main() {
    std::vector<std::pair<const char *, BlockSums>> ways;
#ifdef HAS_X86_VECTORS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) ways.push_back({"avx2", block_sums_avx2});
    if (__builtin_cpu_supports("avx512bw")) ways.push_back({"avx512", block_sums_avx512});
#endif
#ifdef HAS_ARM_VECTORS
    ways.push_back({"neon", block_sums_neon});
#endif
    std::mt19937 random(1);
    for (size_t pairs : {1, 2, 3, 31, 64, 128}) {
        for (int turn = 0; turn < 200; ++turn) {
            // No byte more than there is, so that a tool which watches memory would see what is read behind it.
            std::vector<uint8_t> codes(pairs * BLOCK), tables(pairs * BLOCK);
            for (uint8_t &code : codes) code = static_cast<uint8_t>(random());
            for (uint8_t &value : tables) value = static_cast<uint8_t>(turn == 0 ? 255 : random());
            uint16_t expected[BLOCK], found[BLOCK];
            block_sums(codes.data(), tables.data(), pairs, codes.data(), 0, expected);
            for (size_t document = 0; document < BLOCK; ++document) {
                unsigned sum = 0;
                for (size_t part = 0; part < 2 * pairs; ++part) {
                    size_t place = 0;
                    while (ORDER[place] != document % 16) ++place;
                    const uint8_t byte = codes[part / 2 * BLOCK + part % 2 * 16 + place];
                    sum += tables[part * 16 + (document < 16 ? byte & 15 : byte >> 4)];
                }
                if (sum != expected[document]) return std::printf("portable: %u, not %u\n", expected[document], sum), 1;
            }
            for (uint16_t least : {uint16_t{0}, expected[5], static_cast<uint16_t>(expected[5] + 1), uint16_t{65535}}) {
                uint32_t mask = 0;
                for (size_t i = 0; i < BLOCK; ++i) mask |= static_cast<uint32_t>(expected[i] >= least) << i;
                if (block_sums(codes.data(), tables.data(), pairs, codes.data(), least, found) != mask) return 2;
                for (auto [name, way] : ways) {
                    if (way(codes.data(), tables.data(), pairs, codes.data(), least, found) != mask)
                        return std::printf("%s: another mask\n", name), 3;
                    for (size_t i = 0; mask && i < BLOCK; ++i)
                        if (found[i] != expected[i]) return std::printf("%s: another sum\n", name), 4;
                }
            }
        }
    }
    std::printf("%zu\n", ways.size());
}
"""


def ways_here() -> int:
    """How many ways besides the portable one this machine has."""
    machine = platform.machine()
    if machine == "x86_64":
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith("flags")).split()
        return sum(name in flags for name in ("avx2", "avx512bw"))
    return int(machine == "aarch64")


def test_all_ways_give_the_same(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "c++")  # there is one: the compiled part was built
    (tmp_path / "ways.cpp").write_text(PROGRAM)
    headers = Path(artifacts.__file__).parent / "cpp"
    built = [compiler, "-std=c++17", "-O2", "-I", str(headers), "ways.cpp", "-o", "ways"]
    subprocess.run(built, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "ways"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout) == ways_here()
