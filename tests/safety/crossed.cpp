// A small server with two functions: an exception passes through one of them, but not through the other.
// The server calls both for each line of input.

#include <cstdio>
#include <stdexcept>

extern "C" __attribute__((noinline)) int crossed(int value)
{
    if (value >= 0)
        throw std::runtime_error("thrown");
    return value;
}

extern "C" __attribute__((noinline)) int plain(int value)
{
    __asm__ volatile("" ::: "memory");
    return value + 1;
}

int main()
{
    char line[64];
    int answers = 0;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        try {
            crossed(plain(answers));
        } catch (const std::runtime_error &) {
            answers = plain(answers);
        }
        printf("%d\n", answers);
        fflush(stdout);
    }
    return 0;
}
