/* Scans the events of a Kineto trace into columns: numbers, and the positions of texts.

   Anything uncertain is refused, so that all accepted text is valid JSON that every parser reads alike.

   Profilers write all calls of one operator alike. The text of a parsed event is kept as a chain of pieces, separated
   by its changing parts: times, ids, other numbers of its arguments; a name stands alone and is found by its content.
   A later event of the same pieces, with whole numbers in the same places, is as valid, and has the same name, category,
   process and thread: all this is its shape. Such events are taken without parsing them.

   Events tend to follow one another as before. So the shape that last followed the same three is tried first, in one
   go: its pieces are kept once more, including names, one after another.

   All memory belongs to the caller (library.py). Nothing of the text is read from `limit` on. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef const uint8_t *Text;

/* What has to agree with scan_columns.py. */
enum { DONE, NO_ROOM, UNKNOWN, UNLIKE }; /* why a scan ended */
enum {
    START = 0, DURATION, CORRELATION, EXTERNAL_ID, SIZE, ODD,
    TS = 6, DUR = 8, NAME = 10, CAT = 12, PID = 14, TID = 16, ARGS = 18, PH = 20, /* begin and end of each */
    EVENT = 22, SHAPE, PARSED, NUMBER, COLUMNS
};
enum { OTHER = -1, MAYBE_INTEGER = -2, MAYBE_TEXT = -3, INPUTS = -4 }; /* fields without a column */
enum { EVENT_KEYS, ARGUMENT_KEYS };

/* What follows a piece. Up to SIZE: the column of the number. */
enum { AN_INTEGER = 5, A_NUMBER, A_NAME, NOTHING, A_TEXT, ROW, NO_ROW };

enum { NONE = -1, REFUSED = -1 };
enum { DEEPEST = 60, LONGEST_NUMBER = 40, MOST_DIGITS = 18, EXACT_DIGITS = 25, TIME_DIGITS = 16, MOST_DECIMALS = 20 };
enum { MOST_MARKS = 512, MOST_CHILDREN = 64, MOST_PROBES = 8, MOST_TOKEN_PROBES = 64, LONGEST_PATH = 256 };
enum { FOLLOWED_BITS = 12, BITS_OF_EACH = 4 }; /* of the key of earlier shapes: it has the last three */
static const int64_t LATEST = 4000000000000000; /* microseconds whose thousandths fit 64 bits */

typedef struct {
    const uint8_t *texts;      /* the keys of both tables end to end, sorted by length within each */
    const int64_t *begins;     /* where each begins */
    const int64_t *fields;     /* the column of each, or an argument's type */
    const int64_t *of_length;  /* (table x length): the first key of a table that is as long, or longer */
    int64_t lengths;
} Keys;

typedef struct {
    int32_t first, length;     /* of its text */
    int32_t then;              /* what follows */
    int32_t child, sibling, children;
    int32_t timeless;          /* its event's missing times */
    int32_t opens, closes;     /* where arguments begin and end in it */
    int32_t says_all;          /* of an event's last: whether only numbers except ids identify a collective */
    int32_t whole;             /* of an event's last: the first of the consecutive pieces of the whole event */
} Piece;

typedef struct {
    uint8_t *texts;
    Piece *pieces;             /* a tree, whose root stands before an event */
    int32_t *names;            /* hash table by a name's text and the piece before it: the piece of this name, or 0 */
    int32_t *expected;         /* key of earlier shapes: the shape that followed */
    int64_t text_room, piece_room, name_room;
    int64_t text_size, piece_count;
} Shapes;

typedef struct {
    int64_t *columns;          /* (COLUMNS x room) */
    int64_t room, count;
    int64_t next;              /* where the next event begins */
} Rows;

typedef struct { int64_t begin, end, what; } Mark;

/* An event that is parsed: its row, and marks of its changing parts. */
typedef struct {
    Text text;
    int64_t limit;
    const Keys *keys;
    int64_t row[COLUMNS];
    int64_t marked;            /* beyond MOST_MARKS: it leaves none */
    Mark marks[MOST_MARKS];
} Event;

static inline int64_t *cell(const Rows *rows, int column) { return &rows->columns[column * rows->room + rows->count]; }
static inline bool is_digit(uint8_t sign) { return (uint8_t)(sign - '0') <= 9; }
static inline bool is_space(uint8_t sign) { return sign == ' ' || sign == '\n' || sign == '\r' || sign == '\t'; }

static inline uint64_t word(Text text, int64_t at) {
    uint64_t value;
    memcpy(&value, text + at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static inline bool is_same(Text one, Text another, int64_t size) {
    if (size < 8) {
        for (int64_t i = 0; i < size; i++)
            if (one[i] != another[i]) return false;
        return true;
    }
    int64_t at = 0;
    for (; at + 32 <= size; at += 32)
        if ((word(one, at) ^ word(another, at)) | (word(one, at + 8) ^ word(another, at + 8)) |
            (word(one, at + 16) ^ word(another, at + 16)) | (word(one, at + 24) ^ word(another, at + 24)))
            return false;
    for (; at + 8 <= size; at += 8)
        if (word(one, at) != word(another, at)) return false;
    return word(one, size - 8) == word(another, size - 8);
}

static inline int64_t after_space(Text text, int64_t at, int64_t limit) {
    while (at < limit && is_space(text[at])) at++;
    return at;
}

/* ---- Parsing: each function returns the end of what it reads, or REFUSED. ---- */

/* Of a quoted text, without \u. A plain one has no escapes and is ASCII. */
static int64_t after_string(Text text, int64_t at, int64_t limit, bool is_plain) {
    if (at >= limit || text[at] != '"') return REFUSED;
    for (at++; at < limit; at++) {
        uint8_t sign = text[at];
        if (sign == '"') return at + 1;
        if (sign < 32 || (is_plain && (sign > 126 || sign == '\\'))) return REFUSED;
        if (sign == '\\') {
            at++;
            if (at >= limit || text[at] == 0 || strchr("\"\\/bfnrt", text[at]) == NULL) return REFUSED;
        }
    }
    return REFUSED;
}

static int64_t digits_end(Text text, int64_t at, int64_t limit) {
    while (at < limit && is_digit(text[at])) at++;
    return at;
}

/* Of the digits before a number's point; a leading zero must stand alone. */
static int64_t after_whole(Text text, int64_t at, int64_t limit) {
    int64_t end = digits_end(text, at, limit);
    return end == at || (text[at] == '0' && end - at > 1) ? REFUSED : end;
}

static inline bool has_exponent(Text text, int64_t at, int64_t limit) {
    return at < limit && (text[at] == 'e' || text[at] == 'E');
}

/* Of a number of moderate length. */
static int64_t after_number(Text text, int64_t at, int64_t limit) {
    int64_t begin = at, end;
    if (at < limit && text[at] == '-') at++;
    at = after_whole(text, at, limit);
    if (at == REFUSED) return REFUSED;
    if (at < limit && text[at] == '.') {
        end = digits_end(text, at + 1, limit);
        if (end == at + 1) return REFUSED;
        at = end;
    }
    if (has_exponent(text, at, limit)) {
        at++;
        if (at < limit && (text[at] == '+' || text[at] == '-')) at++;
        end = digits_end(text, at, limit);
        if (end == at) return REFUSED;
        at = end;
    }
    return at - begin <= LONGEST_NUMBER ? at : REFUSED;
}

static int64_t after_literal(Text text, int64_t at, int64_t limit) {
    static const char *const literals[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        int64_t size = (int64_t)strlen(literals[i]);
        if (at + size <= limit && memcmp(text + at, literals[i], (size_t)size) == 0) return at + size;
    }
    return REFUSED;
}

/* From a key's end to its value. */
static int64_t to_value(Text text, int64_t at, int64_t limit) {
    at = after_space(text, at, limit);
    return at >= limit || text[at] != ':' ? REFUSED : after_space(text, at + 1, limit);
}

static int64_t after_key(Text text, int64_t at, int64_t limit) {
    at = after_string(text, at, limit, false);
    return at == REFUSED ? REFUSED : to_value(text, at, limit);
}

static int64_t after_value(Text text, int64_t at, int64_t limit) {
    int depth = 0;
    uint64_t in_object = 0; /* a bit per open level, the innermost last */
    for (;;) {
        if (at >= limit) return REFUSED;
        uint8_t sign = text[at];
        if (sign == '"') {
            at = after_string(text, at, limit, false);
        } else if (sign == '{' || sign == '[') {
            bool of_object = sign == '{';
            at = after_space(text, at + 1, limit);
            if (at < limit && text[at] == (of_object ? '}' : ']')) {
                at++;
            } else {
                if (depth == DEEPEST) return REFUSED;
                depth++;
                in_object = in_object * 2 + of_object;
                if (of_object && (at = after_key(text, at, limit)) == REFUSED) return REFUSED;
                continue;
            }
        } else if (sign == '-' || is_digit(sign)) {
            at = after_number(text, at, limit);
        } else {
            at = after_literal(text, at, limit);
        }
        if (at == REFUSED) return REFUSED;
        for (; depth; depth--, in_object /= 2, at++) {
            at = after_space(text, at, limit);
            if (at >= limit) return REFUSED;
            bool of_object = in_object % 2;
            if (text[at] == ',') {
                at = after_space(text, at + 1, limit);
                if (of_object && (at = after_key(text, at, limit)) == REFUSED) return REFUSED;
                break;
            }
            if (text[at] != (of_object ? '}' : ']')) return REFUSED;
        }
        if (depth == 0) return at;
    }
}

static int64_t value_of(Text text, int64_t begin, int64_t end) {
    int64_t value = 0;
    for (; begin < end; begin++) value = value * 10 + (text[begin] - '0');
    return value;
}

/* Of a whole number of up to 18 digits. */
static int64_t after_integer(Text text, int64_t at, int64_t limit, int64_t *value) {
    bool negative = at < limit && text[at] == '-';
    int64_t begin = at + negative, end = after_whole(text, begin, limit);
    *value = 0;
    if (end == REFUSED || end - begin > MOST_DIGITS) return REFUSED;
    if ((end < limit && text[end] == '.') || has_exponent(text, end, limit)) return REFUSED;
    *value = value_of(text, begin, end);
    if (negative) *value = -*value;
    return end;
}

/* Whether the digits after the last kept one are more than half, or exactly half after an odd digit. */
static bool rounds_up(Text text, int64_t begin, int64_t end, bool is_odd) {
    if (text[begin] != '5') return text[begin] > '5';
    for (begin++; begin < end; begin++)
        if (text[begin] != '0') return true;
    return is_odd;
}

/* Of a decimal number, times 1000, halves rounded to even; one with an exponent or too many digits is refused. */
static int64_t after_thousandths(Text text, int64_t at, int64_t limit, int64_t *thousandths) {
    bool negative = at < limit && text[at] == '-';
    int64_t begin = at + negative, point = after_whole(text, begin, limit);
    *thousandths = 0;
    if (point == REFUSED || point - begin > MOST_DIGITS) return REFUSED;
    int64_t end = point;
    if (point < limit && text[point] == '.') {
        end = digits_end(text, point + 1, limit);
        if (end == point + 1 || end - begin > EXACT_DIGITS) return REFUSED;
    }
    if (has_exponent(text, end, limit)) return REFUSED;
    int64_t value = value_of(text, begin, point);
    if (value >= LATEST) return REFUSED;
    for (int64_t i = point + 1; i < point + 4; i++) value = value * 10 + (i < end ? text[i] - '0' : 0);
    if (end > point + 4 && rounds_up(text, point + 4, end, value % 2 == 1)) value++;
    *thousandths = negative ? -value : value;
    return end;
}

static void mark(Event *event, int64_t begin, int64_t end, int64_t what) {
    if (event->marked < MOST_MARKS) event->marks[event->marked] = (Mark){begin, end, what};
    if (event->marked <= MOST_MARKS) event->marked++;
}

static void leave_no_marks(Event *event) { event->marked = MOST_MARKS + 1; }

/* The meaning of the key `text[begin:end]`: its column, or an argument's type. */
static int64_t field_of(const Event *event, int64_t begin, int64_t end, int table) {
    const Keys *keys = event->keys;
    int64_t size = end - begin;
    if (size >= keys->lengths - 1) return OTHER;
    const int64_t *of_length = keys->of_length + table * keys->lengths;
    for (int64_t key = of_length[size]; key < of_length[size + 1]; key++)
        if (memcmp(event->text + begin, keys->texts + keys->begins[key], (size_t)size) == 0) return keys->fields[key];
    return OTHER;
}

/* Of any value; a number is marked. */
static int64_t after_number_or_other(Event *event, int64_t at) {
    Text text = event->text;
    if (at < event->limit && (text[at] == '-' || is_digit(text[at]))) {
        int64_t end = after_number(text, at, event->limit);
        mark(event, at, end, A_NUMBER);
        return end;
    }
    return after_value(text, at, event->limit);
}

/* Of a time, a number or a text. */
static int64_t after_time(Event *event, int64_t at, int column) {
    int64_t end = after_thousandths(event->text, at, event->limit, &event->row[column]);
    if (end != REFUSED) {
        event->row[ODD] &= ~((int64_t)1 << column);
        mark(event, at, end, column);
        return end;
    }
    event->row[ODD] |= (int64_t)1 << column;
    end = after_string(event->text, at, event->limit, false);
    return end == REFUSED ? after_number(event->text, at, event->limit) : end;
}

/* Of an operator's inputs; a number in the first text, or in the second after an empty one, is marked. */
static int64_t after_inputs(Event *event, int64_t at) {
    Text text = event->text;
    if (event->row[NUMBER] >= 0) leave_no_marks(event); /* only the last inputs count */
    event->row[NUMBER] = -1;
    int64_t end = after_value(text, at, event->limit);
    if (end != REFUSED && text[at] == '[') {
        int64_t begin = after_space(text, at + 1, end);
        if (begin + 1 < end && text[begin] == '"' && text[begin + 1] == '"') {
            begin = after_space(text, begin + 2, end);
            if (begin < end && text[begin] == ',') begin = after_space(text, begin + 1, end);
        }
        if (begin < end && text[begin] == '"') {
            int64_t last = digits_end(text, begin + 1, end);
            if (last < end && text[last] == '"' && last > begin + 1 && last - begin - 1 <= MOST_DIGITS) {
                event->row[NUMBER] = value_of(text, begin + 1, last);
                mark(event, begin + 1, last, A_TEXT);
            }
        }
    }
    return end;
}

static int64_t after_argument(Event *event, int64_t at, int64_t field) {
    Text text = event->text;
    int64_t limit = event->limit, end, value;
    if (field >= 0) {
        end = after_integer(text, at, limit, &event->row[field]);
        mark(event, at, end, field);
        return end;
    }
    if (field == INPUTS) return after_inputs(event, at);
    if (field == OTHER || text[at] == 'n') return after_number_or_other(event, at);
    if (field == MAYBE_INTEGER) {
        end = after_integer(text, at, limit, &value);
        mark(event, at, end, AN_INTEGER);
        return end;
    }
    return after_string(text, at, limit, true);
}

static int64_t after_members(Event *event, int64_t at, int table);

/* Of an event's arguments, an object or null. */
static int64_t after_arguments(Event *event, int64_t at) {
    if (event->row[ARGS + 1]) leave_no_marks(event); /* only the last arguments count */
    for (int column = CORRELATION; column <= SIZE; column++) event->row[column] = -1;
    event->row[NUMBER] = -1;
    if (at < event->limit && event->text[at] == 'n') return after_literal(event->text, at, event->limit);
    return after_members(event, at, ARGUMENT_KEYS);
}

static int64_t after_field(Event *event, int64_t at, int64_t field) {
    Text text = event->text;
    int64_t limit = event->limit, end, value;
    switch (field) {
    case TS: return after_time(event, at, START);
    case DUR: return after_time(event, at, DURATION);
    case PH: return after_string(text, at, limit, true);
    case CAT: return after_string(text, at, limit, false);
    case ARGS: return after_arguments(event, at);
    case NAME:
        end = after_string(text, at, limit, false);
        mark(event, at, end, A_NAME);
        return end;
    case PID:
    case TID:
        end = after_string(text, at, limit, false);
        return end == REFUSED ? after_integer(text, at, limit, &value) : end;
    default: return after_number_or_other(event, at);
    }
}

/* Of an object: an event, or its arguments. */
static int64_t after_members(Event *event, int64_t at, int table) {
    Text text = event->text;
    int64_t limit = event->limit;
    if (at >= limit || text[at] != '{') return REFUSED;
    at = after_space(text, at + 1, limit);
    if (at < limit && text[at] == '}') return at + 1;
    for (;;) {
        int64_t key = at + 1;
        at = after_string(text, at, limit, true);
        if (at == REFUSED) return REFUSED;
        int64_t field = field_of(event, key, at - 1, table);
        int64_t begin = to_value(text, at, limit);
        if (begin == REFUSED || begin >= limit) return REFUSED;
        at = table == EVENT_KEYS ? after_field(event, begin, field) : after_argument(event, begin, field);
        if (at == REFUSED) return REFUSED;
        if (table == EVENT_KEYS && field != OTHER) {
            event->row[field] = begin;
            event->row[field + 1] = at;
        }
        at = after_space(text, at, limit);
        if (at >= limit) return REFUSED;
        if (text[at] == '}') return at + 1;
        if (text[at] != ',') return REFUSED;
        at = after_space(text, at + 1, limit);
    }
}

/* From the end of an event to the next one, or the limit. Some writers put one event per line, without comma. */
static int64_t to_next(Text text, int64_t at, int64_t limit) {
    at = after_space(text, at, limit);
    if (at < limit && text[at] == ',') {
        at = after_space(text, at + 1, limit);
        return at >= limit ? REFUSED : at;
    }
    return at;
}

/* ---- Shapes. ---- */

/* The size of the quoted text at `at` if it has no escapes, and a hash of it and the piece before. */
static int64_t name_at(Text text, int64_t at, int64_t limit, int32_t piece, uint32_t *hash) {
    const uint64_t ones = 0x0101010101010101, quote = 0x2222222222222222, highest = 0x8080808080808080;
    uint32_t hashed = (uint32_t)piece;
    for (int64_t end = at + 1; end + 8 <= limit; end += 8) {
        uint64_t signs = word(text, end), marked = signs ^ quote;
        uint64_t quotes = (marked - ones) & ~marked & highest;
        int before = quotes ? __builtin_ctzll(quotes) >> 3 : 8;
        if (quotes) signs &= ((uint64_t)1 << 8 * before) - 1;
        hashed = (hashed ^ (uint32_t)signs) * 16777619u;
        hashed = (hashed ^ (uint32_t)(signs >> 32)) * 16777619u;
        if (quotes) {
            *hash = hashed ^ (hashed >> 15);
            return end + before + 1 - at;
        }
    }
    *hash = 0;
    return 0;
}

static int32_t known_name(Text text, int64_t at, int64_t size, uint32_t hash, int32_t piece, const Shapes *shapes) {
    for (uint32_t probe = 0; probe < MOST_PROBES; probe++) {
        int32_t one = shapes->names[(hash + probe) & (uint32_t)(shapes->name_room - 1)];
        if (one == 0) return NONE;
        const Piece *known = &shapes->pieces[one];
        if (known->sibling == piece && known->length == size && is_same(text + at, shapes->texts + known->first, size))
            return one;
    }
    return NONE;
}

static int32_t new_piece(Text text, int64_t begin, int64_t end, int64_t then, Shapes *shapes) {
    int64_t number = shapes->piece_count, first = shapes->text_size;
    if (number == shapes->piece_room || first + end - begin > shapes->text_room) return NONE;
    memcpy(shapes->texts + first, text + begin, (size_t)(end - begin));
    shapes->pieces[number] = (Piece){.first = (int32_t)first, .length = (int32_t)(end - begin), .then = (int32_t)then,
                                     .child = NONE, .sibling = NONE, .opens = NONE, .closes = NONE, .whole = NONE};
    shapes->piece_count++;
    shapes->text_size += end - begin;
    return (int32_t)number;
}

/* The piece `text[begin:end]` after `piece`, which is kept if it is new. */
static int32_t learned_piece(const Event *event, int64_t begin, int64_t end, int64_t then, int32_t piece,
                             Shapes *shapes) {
    Piece *pieces = shapes->pieces;
    for (int32_t one = pieces[piece].child; one != NONE; one = pieces[one].sibling)
        if (pieces[one].length == end - begin && pieces[one].then == then &&
            is_same(event->text + begin, shapes->texts + pieces[one].first, end - begin))
            return one;
    if (pieces[piece].children == MOST_CHILDREN) return NONE;
    int32_t new = new_piece(event->text, begin, end, then, shapes);
    if (new == NONE) return NONE;
    pieces[new].sibling = pieces[piece].child;
    pieces[piece].child = new;
    pieces[piece].children++;
    pieces[new].timeless = (int32_t)event->row[ODD];
    if (event->row[ARGS + 1]) {
        int64_t opens = event->row[ARGS], closes = event->row[ARGS + 1];
        if (begin <= opens && opens < end) pieces[new].opens = (int32_t)(opens - begin);
        if (begin < closes && closes <= end) pieces[new].closes = (int32_t)(closes - begin);
    }
    return new;
}

static int32_t learned_name(const Event *event, int64_t begin, int64_t end, int32_t piece, Shapes *shapes) {
    uint32_t hash;
    int64_t size = name_at(event->text, begin, event->limit, piece, &hash);
    if (size != end - begin) return NONE;
    int32_t known = known_name(event->text, begin, size, hash, piece, shapes);
    if (known != NONE) return known;
    for (uint32_t probe = 0; probe < MOST_PROBES; probe++) {
        int32_t *slot = &shapes->names[(hash + probe) & (uint32_t)(shapes->name_room - 1)];
        if (*slot == 0) {
            int32_t new = new_piece(event->text, begin, end, NOTHING, shapes);
            if (new == NONE) return NONE;
            shapes->pieces[new].sibling = piece;
            return *slot = new;
        }
    }
    return NONE;
}

/* Keep the shape of a parsed event that ends at `end`; none if it is unusual, or there is no room. */
static int32_t learned_shape(Event *event, int64_t end, int64_t then, Shapes *shapes) {
    int64_t odd = event->row[ODD];
    if ((odd & 1 && event->row[TS + 1]) || (odd & 2 && event->row[DUR + 1])) return NONE;
    mark(event, end, end, then);
    if (event->marked > MOST_MARKS) return NONE;
    int64_t at = event->row[EVENT];
    int32_t piece = 0, says_all = 1;
    for (int64_t i = 0; i < event->marked; i++) {
        const Mark *one = &event->marks[i];
        piece = learned_piece(event, at, one->begin, one->what, piece, shapes);
        if (piece != NONE && one->what == A_NAME) piece = learned_name(event, one->begin, one->end, piece, shapes);
        if (piece == NONE) return NONE;
        if (one->what == AN_INTEGER) says_all = 0;
        at = one->end;
    }
    shapes->pieces[piece].says_all = says_all;
    return piece;
}

/* Keep the pieces of a whole event once more, one after another: return the first; none beyond half of the room. */
static int32_t learned_whole(const int32_t *path, int64_t met, Shapes *shapes) {
    Piece *pieces = shapes->pieces;
    int64_t number = shapes->piece_count, at = shapes->text_size, size = 0;
    for (int64_t one = 0; one < met; one++) size += pieces[path[one]].length;
    if (2 * (number + met) > shapes->piece_room || 2 * (at + size) > shapes->text_room) return NONE;
    int32_t first = (int32_t)number;
    bool is_new = true;
    for (int64_t one = 0; one < met; one++) {
        const Piece *known = &pieces[path[one]];
        Piece *new = &pieces[number];
        if (is_new) *new = (Piece){.first = (int32_t)at, .opens = NONE, .closes = NONE};
        if (known->opens != NONE) new->opens = new->length + known->opens;
        if (known->closes != NONE) new->closes = new->length + known->closes;
        memcpy(shapes->texts + at, shapes->texts + known->first, (size_t)known->length);
        at += known->length;
        new->length += known->length;
        new->then = known->then;
        /* A name and the text before it are plain text here. */
        is_new = known->then != A_NAME && known->then != NOTHING;
        number += is_new;
    }
    shapes->piece_count = number;
    shapes->text_size = at;
    return first;
}

/* ---- Events that differ from earlier ones only in numbers: ends, or NONE. ---- */

/* The value and the number of the leading digits in the eight characters at `at`, which must be there. */
static inline int eight_digits(Text text, int64_t at, uint64_t *value) {
    uint64_t signs = word(text, at) ^ 0x3030303030303030;
    uint64_t others = ((signs + 0x7676767676767676) | signs) & 0x8080808080808080;
    int count = 8;
    if (others) {
        count = __builtin_ctzll(others) >> 3;
        if (count == 0) return 0;
        /* As if preceded by zeros. */
        signs = (signs & (((uint64_t)1 << 8 * count) - 1)) << (64 - 8 * count);
    }
    /* Combine digits pairwise, then pairs, then fours. */
    signs = signs * (1 + (10 << 8)) >> 8;
    signs = (signs & 0x00FF00FF00FF00FF) * (1 + (100 << 16)) >> 16;
    signs = (signs & 0x0000FFFF0000FFFF) * (1 + ((uint64_t)10000 << 32)) >> 32;
    *value = signs & 0xFFFFFFFF;
    return count;
}

/* Of digits, which have to fit; a leading zero must stand alone. */
static inline int64_t after_digits(Text text, int64_t at, int64_t limit, int64_t *value) {
    static const uint64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    int64_t begin = at;
    uint64_t sum = 0, more = 0;
    int count = 8;
    while (count == 8 && at + 8 <= limit) {
        count = eight_digits(text, at, &more);
        if (count) sum = sum * powers[count] + more;
        at += count;
    }
    for (; count == 8 && at < limit && is_digit(text[at]); at++) sum = sum * 10 + (uint64_t)(text[at] - '0');
    int64_t size = at - begin;
    if (size == 0 || size > MOST_DIGITS || (size > 1 && text[begin] == '0')) return NONE;
    *value = (int64_t)sum;
    return at;
}

static inline int64_t after_signed(Text text, int64_t at, int64_t limit, int64_t *value) {
    if (at >= limit || text[at] != '-') return after_digits(text, at, limit, value);
    at = after_digits(text, at + 1, limit, value);
    if (at != NONE) *value = -*value;
    return at;
}

/* Of microseconds with up to three decimals, as nanoseconds. */
static inline int64_t after_time_alike(Text text, int64_t at, int64_t limit, int64_t *time) {
    int64_t value, end = after_digits(text, at, limit, &value);
    if (end == NONE || end - at > TIME_DIGITS || value >= LATEST) return NONE;
    *time = value * 1000;
    if (end >= limit || text[end] != '.') return end;
    int64_t begin = ++end, unit = 100;
    for (; end < limit && is_digit(text[end]); end++, unit /= 10) {
        if (end - begin == 3) return NONE;
        *time += unit * (text[end] - '0');
    }
    return end == begin ? NONE : end;
}

/* Of a number without an exponent. */
static inline int64_t after_number_alike(Text text, int64_t at, int64_t limit) {
    int64_t value;
    at = after_signed(text, at, limit, &value);
    if (at == NONE || at >= limit || text[at] != '.') return at;
    int64_t begin = at + 1;
    at = digits_end(text, begin, limit);
    return at > begin && at - begin <= MOST_DECIMALS ? at : NONE;
}

/* Of a changing value, which is stored in its column of the row. */
static inline int64_t after_value_alike(Text text, int64_t at, int64_t limit, int32_t what, Rows *rows) {
    int64_t value;
    if (what <= DURATION) return after_time_alike(text, at, limit, cell(rows, what));
    if (what <= SIZE) return after_signed(text, at, limit, cell(rows, what));
    switch (what) {
    case AN_INTEGER: return after_signed(text, at, limit, &value);
    case A_NUMBER: return after_number_alike(text, at, limit);
    case A_TEXT: return after_digits(text, at, limit, cell(rows, NUMBER));
    default: return at;
    }
}

/* Set the begin or end of the row's arguments if the piece at `at` contains them. */
static inline void see_arguments(Rows *rows, int64_t at, const Piece *piece) {
    if (piece->opens != NONE) *cell(rows, ARGS) = at + piece->opens;
    if (piece->closes != NONE) *cell(rows, ARGS + 1) = at + piece->closes;
}

static inline void clear_row(Rows *rows, int64_t at) {
    *cell(rows, EVENT) = at;
    *cell(rows, START) = *cell(rows, DURATION) = *cell(rows, ARGS) = *cell(rows, ARGS + 1) = *cell(rows, PARSED) = 0;
    *cell(rows, CORRELATION) = *cell(rows, EXTERNAL_ID) = *cell(rows, SIZE) = *cell(rows, NUMBER) = -1;
}

/* Of the event at `at` if it consists of `piece` and its successors. */
static inline int64_t after_expected(Text text, int64_t at, int64_t limit, Rows *rows, int32_t piece,
                                     const Shapes *shapes) {
    for (; piece != NONE; piece++) {
        const Piece *one = &shapes->pieces[piece];
        if (at + one->length > limit || !is_same(text + at, shapes->texts + one->first, one->length)) return NONE;
        see_arguments(rows, at, one);
        at += one->length;
        if (one->then >= ROW) return at;
        at = after_value_alike(text, at, limit, one->then, rows);
        if (at == NONE) return NONE;
    }
    return NONE;
}

/* The piece at `at` among the children of `piece`; it becomes the first of them. */
static int32_t piece_behind(Text text, int64_t at, int64_t limit, int32_t piece, const Shapes *shapes) {
    Piece *pieces = shapes->pieces;
    int32_t before = NONE;
    for (int32_t one = pieces[piece].child; one != NONE; before = one, one = pieces[one].sibling) {
        int64_t size = pieces[one].length, value;
        if (at + size > limit || !is_same(text + at, shapes->texts + pieces[one].first, size)) continue;
        if (pieces[one].then == A_TEXT) {
            /* Any text begins with the quote before a number. */
            int64_t end = after_digits(text, at + size, limit, &value);
            if (end == NONE || end >= limit || text[end] != '"') continue;
        }
        if (before != NONE) {
            pieces[before].sibling = pieces[one].sibling;
            pieces[one].sibling = pieces[piece].child;
            pieces[piece].child = one;
        }
        return one;
    }
    return NONE;
}

/* Of the event at `at`, found piece by piece, and its shape. */
static int64_t after_walk(Text text, int64_t at, int64_t limit, Rows *rows, Shapes *shapes, int32_t *shape) {
    Piece *pieces = shapes->pieces;
    int32_t path[LONGEST_PATH];
    int64_t met = 0;
    int32_t piece = 0, what = NOTHING;
    while (what < ROW) {
        piece = piece_behind(text, at, limit, piece, shapes);
        if (piece == NONE) return NONE;
        see_arguments(rows, at, &pieces[piece]);
        if (met < LONGEST_PATH) path[met++] = piece;
        at += pieces[piece].length;
        what = pieces[piece].then;
        if (what == A_NAME) {
            uint32_t hash;
            int64_t size = name_at(text, at, limit, piece, &hash);
            piece = size ? known_name(text, at, size, hash, piece, shapes) : NONE;
            if (piece == NONE) return NONE;
            if (met < LONGEST_PATH) path[met++] = piece;
            at += size;
        } else if (what < ROW) {
            at = after_value_alike(text, at, limit, what, rows);
        }
        if (at == NONE) return NONE;
    }
    if (pieces[piece].whole == NONE && met < LONGEST_PATH) pieces[piece].whole = learned_whole(path, met, shapes);
    *shape = piece;
    return at;
}

/* ---- What Python calls. ---- */

/* The checksum of this file, by which library.py knows whether it is the one that is here. */
unsigned kair_checksum(void) { return KAIR_CHECKSUM; }

void kair_forget_shapes(Shapes *shapes) {
    memset(shapes->names, 0, (size_t)shapes->name_room * sizeof *shapes->names);
    memset(shapes->expected, 0, sizeof *shapes->expected << FOLLOWED_BITS);
    shapes->pieces[0] = (Piece){.then = NOTHING, .child = NONE, .sibling = NONE, .opens = NONE, .closes = NONE,
                                .whole = NONE};
    shapes->piece_count = 1;
    shapes->text_size = 0;
}

/* Parse the event at `rows->next` into a row, keep its shape, and go to the next event. */
static int take_parsed(Text text, int64_t limit, Rows *rows, Shapes *shapes, const Keys *keys, int32_t *shape) {
    Event event;
    int64_t *row = event.row;
    event.text = text, event.limit = limit, event.keys = keys, event.marked = 0;
    memset(row, 0, sizeof event.row);
    for (int column = CORRELATION; column <= SIZE; column++) row[column] = -1;
    row[ODD] = 3;
    row[EVENT] = rows->next;
    row[NUMBER] = row[SHAPE] = -1;
    row[PARSED] = 1;
    int64_t end = after_members(&event, rows->next, EVENT_KEYS);
    if (end == REFUSED) return UNKNOWN;
    bool is_row = false;
    if (row[PH + 1] - row[PH] == 3) {
        uint8_t phase = text[row[PH] + 1];
        if (phase == 'B' || phase == 'E') return UNKNOWN;
        is_row = phase == 'X';
    }
    int64_t next = to_next(text, end, limit);
    if (next == REFUSED) return UNKNOWN;
    *shape = learned_shape(&event, end, is_row ? ROW : NO_ROW, shapes);
    row[SHAPE] = *shape;
    if (is_row) {
        for (int column = 0; column < COLUMNS; column++) *cell(rows, column) = row[column];
        rows->count++;
    }
    rows->next = next;
    return DONE;
}

/* Take the event at `rows->next` if it is like an earlier one, and go to the next event. */
static int take_alike(Text text, int64_t limit, Rows *rows, Shapes *shapes, int32_t *expected, int32_t *shape) {
    int64_t at = rows->next;
    clear_row(rows, at);
    *shape = *expected;
    int64_t end = after_expected(text, at, limit, rows, shapes->pieces[*shape].whole, shapes);
    if (end == NONE) {
        clear_row(rows, at);
        end = after_walk(text, at, limit, rows, shapes, shape);
        if (end == NONE) return UNLIKE;
        *expected = *shape;
    }
    int64_t next = to_next(text, end, limit);
    if (next == REFUSED) return UNKNOWN;
    const Piece *last = &shapes->pieces[*shape];
    *cell(rows, ODD) = last->timeless;
    *cell(rows, SHAPE) = *shape;
    if (last->then == ROW) rows->count++;
    rows->next = next;
    return DONE;
}

/* Take the complete events of `text[:limit]` from `rows->next` on while there is room; return why it ended. */
int kair_scan(Text text, int64_t limit, Rows *rows, Shapes *shapes, const Keys *keys) {
    uint32_t before = 0;
    while (rows->next < limit) {
        if (rows->count == rows->room) return NO_ROOM;
        int32_t shape, *expected = &shapes->expected[before];
        int status = take_alike(text, limit, rows, shapes, expected, &shape);
        if (status == UNLIKE) {
            status = take_parsed(text, limit, rows, shapes, keys, &shape);
            if (status == DONE && shape != NONE) *expected = shape;
        }
        if (status != DONE) return status;
        before = ((before << BITS_OF_EACH) ^ (uint32_t)shape) & ((1u << FOLLOWED_BITS) - 1);
    }
    return DONE;
}

typedef struct {
    int32_t *slots;            /* hash table by the texts' content; 0 is a free slot */
    uint8_t *texts;
    int64_t *ends;
    int32_t *track_slots;
    int32_t *tracks;           /* (track x 3): category, process, thread */
    int64_t slot_room, text_room, room, track_slot_room, track_room;
    int64_t count, track_count; /* text 0 is empty: it stands for a missing field */
} Tokens;

static inline bool is_token(Text text, int64_t size, const Tokens *tokens, int64_t number) {
    int64_t first = tokens->ends[number - 1];
    return tokens->ends[number] - first == size && memcmp(text, tokens->texts + first, (size_t)size) == 0;
}

/* The number of a text; NONE if there is no room. */
static int32_t token_of(Text text, int64_t size, Tokens *tokens) {
    uint32_t hash = 2166136261u;
    for (int64_t i = 0; i < size; i++) hash = (hash ^ text[i]) * 16777619u;
    for (uint32_t probe = 0; probe < MOST_TOKEN_PROBES; probe++) {
        int32_t *slot = &tokens->slots[(hash + probe) & (uint32_t)(tokens->slot_room - 1)];
        if (*slot && is_token(text, size, tokens, *slot)) return *slot;
        if (*slot) continue;
        int64_t number = tokens->count, first = tokens->ends[number - 1];
        if (number == tokens->room || first + size > tokens->text_room) return NONE;
        memcpy(tokens->texts + first, text, (size_t)size);
        tokens->ends[number] = first + size;
        tokens->count++;
        return *slot = (int32_t)number;
    }
    return NONE;
}

static int32_t track_of(const int32_t *parts, Tokens *tokens) {
    int64_t slot = ((int64_t)parts[0] * 31 + parts[1]) * 1000003 + parts[2];
    for (int probe = 0; probe < MOST_TOKEN_PROBES; probe++, slot++) {
        int32_t *number = &tokens->track_slots[slot & (tokens->track_slot_room - 1)];
        if (*number == 0) {
            if (tokens->track_count == tokens->track_room) return NONE;
            memcpy(&tokens->tracks[3 * tokens->track_count], parts, 3 * sizeof *parts);
            *number = (int32_t)++tokens->track_count;
            return *number - 1;
        }
        if (memcmp(&tokens->tracks[3 * (*number - 1)], parts, 3 * sizeof *parts) == 0) return *number - 1;
    }
    return NONE;
}

/* Give numbers to the texts of each row (name, category, process, thread), and to the track of the last three.
   `places` (row x 8) are their begins and ends, `found` (row x 5) gets the numbers. Return how many rows had room. */
int64_t kair_find_tokens(Text text, const int64_t *places, int64_t rows, Tokens *tokens, int32_t *found) {
    int32_t last[4] = {0, 0, 0, 0};
    for (int64_t row = 0; row < rows; row++) {
        const int64_t *of_row = places + 8 * row;
        for (int column = 0; column < 4; column++) {
            int64_t begin = of_row[2 * column], size = of_row[2 * column + 1] - begin;
            int32_t number = last[column];
            if (size == 0) number = 0;
            else if (number == 0 || !is_token(text + begin, size, tokens, number))
                number = token_of(text + begin, size, tokens);
            if (number == NONE) return row;
            found[5 * row + column] = last[column] = number;
        }
        int32_t track = track_of(last + 1, tokens);
        if (track == NONE) return row;
        found[5 * row + 4] = track;
    }
    return rows;
}

/* Fill `packed` (row x 7 words) with records, up to the first whose name or track is unknown (-1); return how many.
   The size is a row's own on a track of copies, else that of its shape. Details are filled in later.
   `is_valid` tells whether all are valid as far as is obvious. */
int64_t kair_pack(const Rows *rows, int64_t count, const int32_t *names, const int32_t *tracks,
                  const int8_t *categories, const int64_t *sizes, int8_t no_category, int8_t copies,
                  int64_t longest, int64_t *packed, int *is_valid) {
    const int64_t *columns = rows->columns;
    int64_t room = rows->room;
    *is_valid = 1;
    for (int64_t row = 0; row < count; row++) {
        int32_t name = names[row], track = tracks[row];
        if (name < 0 || track < 0) return row;
        int64_t shape = columns[SHAPE * room + row], duration = columns[DURATION * room + row];
        int64_t correlation = columns[CORRELATION * room + row], external = columns[EXTERNAL_ID * room + row];
        int8_t category = categories[track];
        if (category == no_category || columns[ODD * room + row] || duration < 0 || duration >= longest) *is_valid = 0;
        int64_t *words = packed + 7 * row;
        words[0] = columns[START * room + row];
        words[1] = duration;
        words[2] = correlation;
        words[3] = external == correlation ? -1 : external;
        words[4] = category == copies ? columns[SIZE * room + row] : shape >= 0 ? sizes[shape] : -1;
        memcpy(&words[5], (int32_t[]){track, name}, sizeof *words);
        words[6] = -1;
    }
    return count;
}
