/* Imitate a server whose memory wastes the reader's time or memory. Arguments: HOW FOLDER. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef BYTES
#define BYTES (40 << 20)
#endif
#define WORDS (BYTES / sizeof(uint64_t))

struct variable {
    int flags;
    const char *name, *comment;
    void *check, *update, *value, *initial, *types;
};

static uint64_t words[WORDS];
static int value;
static struct variable variable = {1, "plausible", "plausible", 0, 0, &value, 0, 0};

/* Make /proc/PID/maps larger than 8 MiB: each mapping has a path of 4 KB. */
static void long_maps(const char *folder)
{
    char name[251] = {0};
    memset(name, 'd', 250);
    if (chdir(folder))
        return;
    for (int depth = 0; depth < 15; depth++)
        if (mkdir(name, 0700) || chdir(name))
            return;
    int file = open("f", O_RDWR | O_CREAT, 0600);
    if (ftruncate(file, 4096))
        return;
    for (int i = 0; i < 65000; i++)
        mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0);
}

static void own_mappings(void)
{
    int file = open("/proc/self/exe", O_RDONLY);
    for (int i = 0; i < 60000; i++)
        mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
}

/* Write rows of 21 pointers, each to a plausible variable. */
static void plausible_rows(void)
{
    for (size_t i = 0; i < WORDS; i++)
        words[i] = i % 22 ? (uint64_t)&variable : 0;
}

static void fill(const char *how, const char *folder)
{
    static const char anchor[] = ANCHOR;
    if (!strcmp(how, "long_maps"))
        long_maps(folder);
    else if (!strcmp(how, "own_mappings"))
        own_mappings();
    else if (!strcmp(how, "plausible_rows"))
        plausible_rows();
    else if (!strcmp(how, "names"))
        for (size_t i = 0; i + sizeof anchor <= BYTES; i += sizeof anchor)
            memcpy((char *)words + i, anchor, sizeof anchor);
    else
        for (size_t i = 0; i < WORDS; i++)
            words[i] = strcmp(how, "slots") ? (uint64_t)&words[i] : (uint64_t)anchor;
}

int main(int count, char **arguments)
{
    fill(arguments[1], arguments[2]);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
