/* Draws a tree out of an .npz archive as `treeopt show` does: cc -std=c99 -O1 -o show_npz show_npz.c
 *
 * The archive comes from `treeopt export tree.json --to npz`: a zip file of uncompressed .npy files, one per array.
 * Only parents is read, because the other array, mask, follows from it.
 * No number in the file is trusted: what does not fit ends in one line on stderr and exit status 1. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 65536, MAX_DIRECTORY = 65536, MAX_HEADER = 1024 };
enum { WIDTH = 100, MARGIN = 8, TAIL = 8, MAX_ROWS = 64, LEAST_ROWS = 9 }; /* the diagram's, as in treeopt */
enum { LEFT = 1, RIGHT = 2, UP = 4, DOWN = 8, NODE = 16 }; /* what a character joins, or a node */

static const uint64_t LARGER = 0xFFFFFFFF; /* a zip field whose value stands elsewhere, because it needs more bits */
static const char *path;
static FILE *file;
static uint64_t file_size;
static uint8_t directory[MAX_DIRECTORY];

static void fail(const char *reason)
{
    fprintf(stderr, "show_npz: %s: %s\n", path, reason);
    exit(1);
}

static int larger(int a, int b) { return a > b ? a : b; }
static int smaller(int a, int b) { return a < b ? a : b; }

/* ---- The archive: its central directory, at the end of the file, says where each array lies. ---- */

static void read_at(uint64_t offset, void *into, uint64_t size)
{
    if (offset > file_size || size > file_size - offset)
        fail("is cut off, or is no .npz archive.");
    if (fseek(file, (long)offset, SEEK_SET) != 0 || fread(into, 1, (size_t)size, file) != size)
        fail("cannot be read.");
}

/* Return an unsigned number of so many bytes, the lowest first. */
static uint64_t number(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0)
        value = value << 8 | from[bytes];
    return value;
}

/* Read the central directory and return its size. */
static uint64_t read_directory(void)
{
    uint8_t end[22]; /* its last record; a comment may follow in other archives, never in numpy's */
    uint64_t size, offset;
    read_at(file_size < sizeof end ? file_size : file_size - sizeof end, end, sizeof end);
    if (memcmp(end, "PK\5\6", 4) != 0)
        fail("is cut off, or is no .npz archive.");
    size = number(end + 12, 4);
    offset = number(end + 16, 4);
    if (size > MAX_DIRECTORY || offset == LARGER)
        fail("holds too many files, or more than 4 GB.");
    read_at(offset, directory, size);
    return size;
}

/* Find an array in the directory: where its bytes begin, and how many they are. */
static uint64_t find(uint64_t directory_size, const char *name, uint64_t *size)
{
    uint64_t at = 0, offset;
    uint8_t local[30];
    while (directory_size - at >= 46) {
        const uint8_t *entry = directory + at;
        uint64_t named = number(entry + 28, 2), all = 46 + named + number(entry + 30, 2) + number(entry + 32, 2);
        if (memcmp(entry, "PK\1\2", 4) != 0 || all > directory_size - at)
            fail("has a wrong directory.");
        at += all;
        if (named != strlen(name) || memcmp(entry + 46, name, named) != 0)
            continue;
        *size = number(entry + 24, 4);
        offset = number(entry + 42, 4);
        if (number(entry + 10, 2) != 0 || *size == LARGER || offset == LARGER)
            fail("is compressed, or holds more than 4 GB.");
        read_at(offset, local, sizeof local); /* a second header, with a zip64 field that makes it longer */
        if (memcmp(local, "PK\3\4", 4) != 0)
            fail("has a wrong directory.");
        return offset + sizeof local + number(local + 26, 2) + number(local + 28, 2);
    }
    fail("lacks an array. Expected what treeopt export writes.");
    return 0;
}

/* Read an array int32 (n) of at most MAX_NODES numbers, return n. */
static int read_int32(uint64_t directory_size, const char *name, int32_t *values)
{
    static uint8_t bytes[4 * MAX_NODES];
    char header[MAX_HEADER + 1] = "", *shape, *rest;
    uint8_t magic[10];
    uint64_t size, offset = find(directory_size, name, &size), length, count;
    read_at(offset, magic, sizeof magic);
    length = number(magic + 8, 2);
    if (memcmp(magic, "\x93NUMPY\1", 7) != 0 || length > MAX_HEADER)
        fail("has an array in a format other than .npy 1.0.");
    read_at(offset + sizeof magic, header, length);
    if (!strstr(header, "'descr': '<i4'") || !(shape = strstr(header, "'shape': (")))
        fail("has an array of another type. Expected int32 (n).");
    count = strtoul(shape + strlen("'shape': ("), &rest, 10);
    if (strncmp(rest, ",)", 2) != 0 || count < 1 || count > MAX_NODES)
        fail("has an array of another shape. Expected int32 (n), n from 1 to 65536.");
    if (size != sizeof magic + length + 4 * count)
        fail("has an array that is cut off.");
    read_at(offset + sizeof magic + length, bytes, 4 * count);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (int32_t)number(bytes + 4 * i, 4);
    return (int)count;
}

/* ---- The tree: parents in level order, siblings in rank order. ---- */

static int nodes;
static int32_t parents[MAX_NODES];
static int depth[MAX_NODES], width[MAX_NODES], widest; /* of each node; nodes of each depth, and the most */
static bool visible[MAX_NODES]; /* has a place in the diagram; the others are left out */

static void read_tree(void)
{
    nodes = read_int32(read_directory(), "parents.npy", parents);
    for (int node = 0; node < nodes; node++) {
        int32_t parent = parents[node];
        if (node == 0 ? parent != -1 : parent < 0 || parent >= node || parent < parents[node - 1])
            fail("holds no tree: parents are not in level order.");
        depth[node] = node == 0 ? 0 : depth[parent] + 1;
        widest = larger(widest, ++width[depth[node]]);
    }
}

/* ---- The diagram: one column per depth, one line per leaf. ---- */


static bool has_sibling_before(int node) { return node > 0 && parents[node - 1] == parents[node]; }
static int smallest_cell(void) { return larger(4, snprintf(NULL, 0, "%d", widest) + 1); }

/* Mark the nodes that fit, in the order in which they stand, and count their levels; return whether all fit. */
static bool choose_visible(int *shown)
{
    int deepest = (WIDTH - MARGIN - TAIL) / smallest_cell() - 1, leaves = 1, free_rows = MAX_ROWS - LEAST_ROWS;
    for (int node = 1; node < nodes; node++)
        leaves += has_sibling_before(node);
    bool all = depth[nodes - 1] <= deepest && leaves <= MAX_ROWS - LEAST_ROWS + 3;
    for (int node = 0; node < nodes; node++) {
        if (!all && node > 0 && (!visible[parents[node]] || depth[node] > deepest))
            continue;
        if (!all && has_sibling_before(node) && free_rows-- == 0)
            break;
        visible[node] = true;
        *shown = larger(*shown, depth[node] + 1);
    }
    return all;
}

/* Print the depth, the nodes or the bar of a level, return the characters; levels out of sight come as one. */
static int print_level(int line, int level, int shown)
{
    static const char *const bars[] = {"▁▁▁", "▂▂▂", "▃▃▃", "▄▄▄", "▅▅▅", "▆▆▆", "▇▇▇", "███"};
    int last = level < shown ? level : depth[nodes - 1], sum = 0, most = 0;
    for (int d = level; d <= last; d++) {
        sum += width[d];
        most = larger(most, width[d]);
    }
    if (line == 0)
        return printf(level < last ? "%d-%d" : "%d", level, last);
    if (line == 1)
        return printf("%d", sum);
    fputs(bars[(8 * most + widest - 1) / widest - 1], stdout);
    return 3;
}

static void print_levels(int shown, int cell)
{
    static const char *const names[] = {"depth", "nodes", ""};
    printf("%d node%s, depth %d\n\n", nodes, nodes > 1 ? "s" : "", depth[nodes - 1]);
    for (int line = 0; line < 3; line++) {
        int pad = MARGIN - printf("%s", names[line]);
        for (int level = 0; level <= smaller(shown, depth[nodes - 1]); level++) {
            printf("%*s", pad, "");
            pad = larger(0, cell - print_level(line, level, shown));
        }
        putchar('\n');
    }
    putchar('\n');
}

static void print_branches(int cell)
{
    static const char *const box[] = {" ", "", "", "─", "", "", "└", "", "", "", "", "┬", "│", "", "├", "", "●"};
    static int height[MAX_NODES], line_of[MAX_NODES], next_line[MAX_NODES];
    static uint8_t sides[MAX_ROWS][WIDTH];
    int lead = smaller((cell - 3) / 2, 2); /* characters between a branch and its node */
    for (int node = nodes - 1; node > 0; node--)
        height[parents[node]] += height[node] = larger(1, height[node]);
    height[0] = larger(1, height[0]);
    for (int node = 0; node < nodes; node++) {
        int column = MARGIN + cell * depth[node], branch = column - lead - 1;
        if (node > 0) {
            int above = line_of[parents[node]], line = next_line[parents[node]]; /* the same for a first child */
            line_of[node] = next_line[node] = line;
            next_line[parents[node]] += height[node];
            for (int x = column - cell + 1 + lead / 2; x < branch && line == above; x++)
                sides[line][x] = LEFT | RIGHT;
            sides[line][branch] |= line == above ? LEFT | RIGHT : RIGHT;
            for (int y = above; y <= line; y++)
                sides[y][branch] |= (y > above ? UP : 0) | (y < line ? DOWN : 0);
            if (lead > 0)
                sides[line][branch + 1] = LEFT | RIGHT;
        }
        sides[line_of[node]][column] = NODE;
    }
    for (int line = 0; line < height[0]; line++) {
        int end = WIDTH;
        while (end > 0 && sides[line][end - 1] == 0)
            end--;
        printf("%s", line == 0 ? "tree" : "    ");
        for (int x = 4; x < end; x++)
            fputs(box[sides[line][x]], stdout);
        putchar('\n');
    }
}

int main(int count, char **arguments)
{
    int shown = 0;
    long size;
    if (count != 2) {
        fprintf(stderr, "usage: show_npz FILE.npz\n");
        return 1;
    }
    path = arguments[1];
    if (!(file = fopen(path, "rb")) || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0)
        fail("cannot be opened.");
    file_size = (uint64_t)size;
    read_tree();
    bool all = choose_visible(&shown);
    int cell = larger(smaller((WIDTH - MARGIN - TAIL) / shown, 8), smallest_cell());
    print_levels(shown, cell);
    if (all)
        print_branches(cell);
    else
        printf("The tree is too large for this diagram; treeopt show draws the part that fits.\n");
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
