/* Counts what Python's allocators are asked for. They are called with the GIL held, so a plain number will do. */
#include <stddef.h>

typedef struct {
    void *ctx;
    void *(*malloc)(void *ctx, size_t size);
    void *(*calloc)(void *ctx, size_t count, size_t size);
    void *(*realloc)(void *ctx, void *block, size_t size);
    void (*free)(void *ctx, void *block);
} Allocator; /* PyMemAllocatorEx */

unsigned long long allocations;

static void *count_malloc(void *ctx, size_t size)
{
    Allocator *counted = ctx;
    allocations++;
    return counted->malloc(counted->ctx, size);
}

static void *count_calloc(void *ctx, size_t count, size_t size)
{
    Allocator *counted = ctx;
    allocations++;
    return counted->calloc(counted->ctx, count, size);
}

static void *count_realloc(void *ctx, void *block, size_t size)
{
    Allocator *counted = ctx;
    allocations++;
    return counted->realloc(counted->ctx, block, size);
}

static void count_free(void *ctx, void *block)
{
    Allocator *counted = ctx;
    counted->free(counted->ctx, block);
}

/* What is to be used in the place of counted, which has to stay where it is. */
void counting(Allocator *counted, Allocator *in_its_place)
{
    in_its_place->ctx = counted;
    in_its_place->malloc = count_malloc;
    in_its_place->calloc = count_calloc;
    in_its_place->realloc = count_realloc;
    in_its_place->free = count_free;
}
