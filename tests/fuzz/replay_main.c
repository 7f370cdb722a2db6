/* Tries a target with the files that the arguments name. */
#include "input.h"

int main(int count, char **arguments)
{
    static uint8_t bytes[1 << 20];
    for (int each = 1; each < count; each++) {
        FILE *file = fopen(arguments[each], "rb");
        require(file != NULL);
        size_t length = fread(bytes, 1, sizeof bytes, file);
        fclose(file);
        uint8_t *exact = malloc(length + !length); /* so that reading beyond it is found */
        memcpy(exact, bytes, length);
        try_input(exact, length);
        free(exact);
    }
    printf("%d inputs\n", count - 1);
    return 0;
}
