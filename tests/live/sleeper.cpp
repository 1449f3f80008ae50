// Threads that sleep in a function of the test's choice.
//
// Arguments: the descriptor for replies, then one descriptor per thread for commands. A thread that reads 'a' or
// 'b' enters asleep_in_a or asleep_in_b, replies with its index and sleeps there; on 'q' it exits.
#include <cstdint>
#include <cstdlib>
#include <pthread.h>
#include <unistd.h>

static int answers;

struct thread {
    uint8_t index;
    int commands;
};

// Both functions below sleep in this one, so only a correct copy of the stack shows which of them called it.
extern "C" __attribute__((noinline, noclone)) char told(const thread *self)
{
    char command = 'q';
    (void)!write(answers, &self->index, 1);
    if (read(self->commands, &command, 1) != 1)
        return 'q';
    __asm__ volatile("");
    return command;
}

#define STATE(name)                                                                                          \
    extern "C" __attribute__((noinline, noclone)) char asleep_in_##name(const thread *self)                  \
    {                                                                                                        \
        char command = told(self);                                                                           \
        __asm__ volatile("");                                                                                \
        return command;                                                                                      \
    }
STATE(a)
STATE(b)

static void *run(void *argument)
{
    const thread *self = static_cast<thread *>(argument);
    char command = 'a';
    while (command != 'q')
        command = command == 'a' ? asleep_in_a(self) : asleep_in_b(self);
    return nullptr;
}

int main(int count, char **arguments)
{
    alarm(120); // in case the test does not end this process
    answers = atoi(arguments[1]);
    for (int i = 2; i < count; i++) {
        pthread_t thread_id;
        pthread_create(&thread_id, nullptr, run, new thread{static_cast<uint8_t>(i - 2), atoi(arguments[i])});
    }
    for (;;)
        pause();
}
