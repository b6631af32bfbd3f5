"""What is above a bound in a window is found alike, whatever the processor has."""

import os
import platform
import subprocess
from pathlib import Path

from lightretriever.artifacts import kernels

PROGRAM = r"""
#include <cstdio>
#include <random>
#include <vector>
#include "window_sums.hpp"
using namespace kernels;

int main() {
    std::vector<TakeAbove> ways{take_above};
#ifdef HAS_X86_VECTORS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) ways.push_back(take_above_avx2);
#endif
    std::mt19937 random(1);
    std::vector<uint16_t> places(WINDOW + 1);
    std::vector<double> scores(WINDOW + 1);
    for (int turn = 0; turn < 300; ++turn) {
        // From none to all above the bound, and equal ones.
        const double bound = (turn % 7) * 4.0;
        std::vector<double> sums(WINDOW);
        for (double &sum : sums)
            if (random() % 300 < static_cast<unsigned>(turn)) sum = random() % 26;
        for (TakeAbove take : ways) {
            std::vector<double> left = sums;
            const size_t count = take(left.data(), bound, places.data(), scores.data());
            size_t seen = 0;
            for (size_t place = 0; place < WINDOW; ++place) {
                if (left[place] != 0) return std::printf("%zu is left\n", place), 1;
                if (!(sums[place] > bound)) continue;
                if (seen >= count || places[seen] != place || scores[seen] != sums[place])
                    return std::printf("turn %d: %zu is not found\n", turn, place), 1;
                ++seen;
            }
            if (seen != count) return std::printf("turn %d: %zu for %zu\n", turn, count, seen), 1;
        }
    }
    std::printf("%zu\n", ways.size());
}
"""


def test_all_ways_give_the_same(tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "c++")  # there is one: the compiled part was built
    (tmp_path / "ways.cpp").write_text(PROGRAM)
    headers = Path(kernels.__file__).parent / "cpp"
    subprocess.run(
        [compiler, "-std=c++17", "-O2", "-I", str(headers), "ways.cpp", "-o", "ways"], cwd=tmp_path, check=True
    )
    done = subprocess.run([tmp_path / "ways"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    has_avx2 = platform.machine() == "x86_64" and " avx2 " in Path("/proc/cpuinfo").read_text()
    assert int(done.stdout) == 1 + has_avx2
