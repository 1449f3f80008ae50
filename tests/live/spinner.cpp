// Threads that never enter the kernel by themselves, and always publish their current function.
//
// Arguments: a file of 4-byte words that is shared with the test, and the number of threads. Word 0 is the
// phase that the test sets. Word 1 is set once all threads exist. Word 2 + i is the phase of thread i. The
// thread writes this word after it has entered the function named after the phase, so from then on every
// correct stack contains that function.
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint32_t *words;

#define PHASE(n)                                                                                             \
    extern "C" __attribute__((noinline, noclone)) void phase_##n(int self)                                   \
    {                                                                                                        \
        words[2 + self] = n;                                                                                 \
        while (words[0] % 4 == n) {                                                                          \
        }                                                                                                    \
        __asm__ volatile("");                                                                                \
    }
PHASE(0)
PHASE(1)
PHASE(2)
PHASE(3)

extern "C" __attribute__((noinline, noclone)) void before()
{
    syscall(SYS_getppid); // the last system call of this thread
    __asm__ volatile("");
}

extern "C" __attribute__((noinline, noclone)) void spinning(int self)
{
    before();
    for (;;) {
        switch (words[0] % 4) {
        case 0: phase_0(self); break;
        case 1: phase_1(self); break;
        case 2: phase_2(self); break;
        default: phase_3(self); break;
        }
    }
}

static void *run(void *argument)
{
    spinning(static_cast<int>(reinterpret_cast<intptr_t>(argument)));
    return nullptr;
}

int main(int, char **arguments)
{
    int file = open(arguments[1], O_RDWR);
    int threads = atoi(arguments[2]);
    alarm(120); // in case the test does not end this process
    words = static_cast<volatile uint32_t *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, nullptr, run, reinterpret_cast<void *>(static_cast<intptr_t>(i)));
    }
    words[1] = 1;
    for (;;)
        pause();
}
