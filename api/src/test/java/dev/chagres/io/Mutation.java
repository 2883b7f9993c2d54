package dev.chagres.io;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;

/** Ways to change a safetensors file. */
enum Mutation {
    /** One byte anywhere, the length included. */
    BYTE {
        @Override
        byte[] of(byte[] bytes, Random random) {
            byte[] changed = bytes.clone();
            if (changed.length > 0) {
                changed[random.nextInt(changed.length)] = (byte) random.nextInt(256);
            }
            return changed;
        }
    },
    /** A byte of the data. */
    DATA {
        @Override
        byte[] of(byte[] bytes, Random random) {
            int begin = Math.min(bytes.length, 8 + header(bytes).length());
            byte[] changed = bytes.clone();
            if (begin < changed.length) {
                changed[begin + random.nextInt(changed.length - begin)] ^= (byte) (1 << random.nextInt(8));
            }
            return changed;
        }
    },
    /** Some bytes less. */
    CUT {
        @Override
        byte[] of(byte[] bytes, Random random) {
            int begin = random.nextInt(bytes.length + 1);
            int end = random.nextBoolean() ? bytes.length : Math.min(bytes.length, begin + random.nextInt(8));
            return joined(Arrays.copyOf(bytes, begin), Arrays.copyOfRange(bytes, end, bytes.length));
        }
    },
    /** Some bytes more: spaces, junk, or a piece of the file again. */
    INSERTED {
        @Override
        byte[] of(byte[] bytes, Random random) {
            int at = random.nextInt(bytes.length + 1);
            byte[] more = new byte[1 + random.nextInt(16)];
            switch (random.nextInt(3)) {
                case 0 -> Arrays.fill(more, (byte) ' ');
                case 1 -> random.nextBytes(more);
                default -> more = Arrays.copyOfRange(bytes, at / 2, at);
            }
            return joined(Arrays.copyOf(bytes, at), more, Arrays.copyOfRange(bytes, at, bytes.length));
        }
    },
    /** Another length of the header. */
    LENGTH {
        @Override
        byte[] of(byte[] bytes, Random random) {
            if (bytes.length < 8) {
                return bytes;
            }
            long old = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).getLong(0);
            long length = switch (random.nextInt(4)) {
                case 0 -> random.nextLong();
                case 1 -> random.nextLong(200_000_000);
                case 2 -> bytes.length - 8;
                default -> old + random.nextInt(-3, 4);
            };
            byte[] changed = bytes.clone();
            ByteBuffer.wrap(changed).order(ByteOrder.LITTLE_ENDIAN).putLong(0, length);
            return changed;
        }
    },
    /** A number, text or bracket of the header is another, and the length is right again. */
    TOKEN {
        @Override
        byte[] of(byte[] bytes, Random random) {
            String header = header(bytes);
            List<MatchResult> tokens = TOKENS.matcher(header).results().toList();
            if (tokens.isEmpty()) {
                return bytes;
            }
            MatchResult token = tokens.get(random.nextInt(tokens.size()));
            String other = random.nextBoolean()
                    ? tokens.get(random.nextInt(tokens.size())).group()
                    : JUNK.get(random.nextInt(JUNK.size()));
            String changed = header.substring(0, token.start()) + other + header.substring(token.end());
            byte[] data = Arrays.copyOfRange(bytes, Math.min(bytes.length, 8 + header.length()), bytes.length);
            byte[] json = changed.getBytes(StandardCharsets.ISO_8859_1);
            return RawFile.bytes(json.length, json, data);
        }
    };

    private static final Pattern TOKENS = Pattern.compile("\"[^\"]*\"|\\d+|[\\[\\]{}:,]");
    private static final List<String> JUNK = List.of(
            "",
            "-1",
            "0",
            "1",
            "2",
            "3",
            "1.5",
            "1e400",
            "-0",
            "007",
            "NaN",
            "null",
            "true",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551616",
            "4294967296",
            "1".repeat(400),
            "\"U8\"",
            "\"F64\"",
            "\"F4\"",
            "\"F32\"",
            "\"shape\"",
            "\"dtype\"",
            "\"data_offsets\"",
            "\"__metadata__\"",
            "\"\\ud800\"",
            "\"\\u0000\"",
            "\"\\",
            "[".repeat(2000),
            "{\"a\":".repeat(2000),
            "[[]]",
            "{}",
            "[]",
            "{\"a\":{}}",
            "[0,0]",
            "[1,2,3]",
            " ",
            "\n",
            "\u0000",
            "\u00ff\u00fe",
            "//",
            "/*",
            "'a'",
            "\"x\":\"y\"",
            "\"" + "n".repeat(70_000) + "\"");

    abstract byte[] of(byte[] bytes, Random random);

    /** Returns the file with one to three changes. */
    static byte[] some(byte[] original, Random random) {
        byte[] bytes = original;
        for (int count = 1 + random.nextInt(3); count > 0; count--) {
            bytes = values()[random.nextInt(values().length)].of(bytes, random);
        }
        return bytes;
    }

    /** The header, a character a byte, as far as the file has it. */
    private static String header(byte[] bytes) {
        if (bytes.length < 8) {
            return "";
        }
        long length = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).getLong(0);
        int size = Math.clamp(length, 0, bytes.length - 8);
        return new String(bytes, 8, size, StandardCharsets.ISO_8859_1);
    }

    private static byte[] joined(byte[]... parts) {
        ByteBuffer joined = ByteBuffer.allocate(
                Arrays.stream(parts).mapToInt(part -> part.length).sum());
        for (byte[] part : parts) {
            joined.put(part);
        }
        return joined.array();
    }
}
