/* Imitate a server whose swap device stops responding on SIGUSR1, so that access to one stack never ends. With a
 * file as the argument, the file replaces that stack on SIGUSR1. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_BYTES (256 << 10)

static void *run(void *unused)
{
	for (;;)
		usleep(50000);
	return unused;
}

/* Page faults in the memory wait for a reply from a reader of the descriptor, but nothing reads it. */
static int hang(void *memory)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {
		.range = {.start = (unsigned long)memory, .len = STACK_BYTES},
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	return faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range) ||
	       madvise(memory, STACK_BYTES, MADV_DONTNEED);
}

/* Map the file over the memory, so that page faults read the file. */
static int replace(void *memory, int file)
{
	return mmap(memory, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE, file, 0) == MAP_FAILED;
}

int main(int count, char **arguments)
{
	int file = count > 1 ? open(arguments[1], O_RDONLY) : -1;
	void *stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t signals;
	int received;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigprocmask(SIG_BLOCK, &signals, 0);
	pthread_attr_init(&attributes);
	if (count > 1 && file < 0)
		return 1;
	if (stack == MAP_FAILED || pthread_attr_setstack(&attributes, stack, STACK_BYTES) ||
	    pthread_create(&thread, &attributes, run, 0))
		return 1;
	puts("ready");
	fflush(stdout);
	sigwait(&signals, &received);
	if (file < 0 ? hang(stack) : replace(stack, file))
		return 1;
	puts("hangs");
	fflush(stdout);
	for (;;)
		pause();
}
