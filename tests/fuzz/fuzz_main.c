/* Fuzzes a target with libFuzzer: its options are the arguments. */
#include "input.h"

int LLVMFuzzerRunDriver(int *, char ***, int (*)(const uint8_t *, size_t));

int main(int count, char **arguments)
{
    return LLVMFuzzerRunDriver(&count, &arguments, try_input);
}
