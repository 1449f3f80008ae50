// Many threads with stacks of a given depth.
//
// Arguments: number of threads, bytes of stack that each thread uses, milliseconds between wakeups of each
// thread (0: never). The process prints a line once all threads have reached their depth. It exits when its
// standard input is closed.
#include <alloca.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

static constexpr size_t STACK_BYTES = 64 * 1024;
static constexpr size_t FRAME_BYTES = 1024;

static long period_ms;
static sem_t deep;

extern "C" __attribute__((noinline, noclone)) void asleep_in_crowd()
{
    sem_post(&deep);
    for (;;) {
        if (period_ms == 0)
            pause();
        timespec period{period_ms / 1000, period_ms % 1000 * 1'000'000};
        nanosleep(&period, nullptr);
    }
}

extern "C" __attribute__((noinline, noclone)) void deeper(long bytes)
{
    volatile char frame[FRAME_BYTES];
    memset(const_cast<char *>(frame), 1, sizeof(frame));
    if (bytes > static_cast<long>(FRAME_BYTES))
        deeper(bytes - FRAME_BYTES);
    else
        asleep_in_crowd();
    frame[0] = 0; // prevents a tail call
}

static void *run(void *bytes)
{
    deeper(reinterpret_cast<long>(bytes));
    return nullptr;
}

int main(int, char **arguments)
{
    long threads = atol(arguments[1]);
    void *bytes = reinterpret_cast<void *>(atol(arguments[2]));
    period_ms = atol(arguments[3]);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sem_init(&deep, 0, 0);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        if (int error = pthread_create(&thread, &attributes, run, bytes)) {
            fprintf(stderr, "thread %ld: %s\n", i, strerror(error));
            return 1;
        }
    }
    for (long i = 0; i < threads; i++)
        sem_wait(&deep);
    puts("ready");
    fflush(stdout);
    char end;
    while (read(0, &end, 1) > 0) {
    }
    return 0;
}
