package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** What is refused of a header, and in which words. */
@Tag("L0")
class SafetensorsHeaderTest {
    @TempDir
    private Path folder;

    private static Arguments refused(String header, int dataSize, String text) {
        return Arguments.of(header, dataSize, text);
    }

    private static String tensor(String field) {
        return "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]," + field + "}}";
    }

    private static String a(String dtype, String shape, long begin, long end) {
        return "{" + RawFile.tensor("a", dtype, shape, begin, end) + "}";
    }

    private static String both(long begin, long end) {
        return "{" + RawFile.tensor("b", "U8", "[4]", begin, end) + "," + RawFile.tensor("a", "U8", "[8]", 0, 8) + "}";
    }

    static Stream<Arguments> layouts() {
        return Stream.of(
                refused(
                        both(6, 10),
                        10,
                        "tensor \"b\": data_offsets: expected to begin at 8, where tensor \"a\" ends, got 6: "
                                + "the two overlap"),
                refused(
                        both(9, 13),
                        13,
                        "tensor \"b\": data_offsets: expected to begin at 8, where tensor \"a\" ends, got 9: "
                                + "the bytes between belong to no tensor"),
                refused(
                        both(8, 12),
                        11,
                        "tensor \"b\": data_offsets: expected to end within the 11 bytes of data, got 12: "
                                + "the file is cut short or damaged"),
                refused(both(8, 12), 13, "expected 12 bytes of data, of all tensors, got 13"),
                refused("{}", 1, "expected 0 bytes of data, of all tensors, got 1"),
                refused(
                        a("U8", "[2]", 1, 3),
                        3,
                        "tensor \"a\": data_offsets: expected to begin at 0, where the header ends, "
                                + "got 1: the bytes between belong to no tensor"),
                refused(
                        a("U8", "[2]", 2, 0),
                        2,
                        "tensor \"a\": data_offsets: expected a begin before the end, got 2, 0"),
                refused(a("F32", "[2]", 0, 2), 2, "tensor \"a\": data_offsets: expected 8 bytes for F32[2], got 2"),
                refused(a("U8", "[]", 0, 2), 2, "tensor \"a\": data_offsets: expected 1 bytes for U8[], got 2"),
                refused(a("U8", "[0]", 0, 2), 2, "tensor \"a\": data_offsets: expected 0 bytes for U8[0], got 2"),
                refused(
                        a("F4", "[3]", 0, 2),
                        2,
                        "tensor \"a\": shape: F4[3] is no possible size: expected whole bytes, got 12 bits"),
                refused(
                        a("U8", "[4294967296,4294967296]", 0, 0),
                        0,
                        "tensor \"a\": shape: U8[4294967296, 4294967296] is no possible size: long overflow"),
                refused(
                        a("I64", "[" + Long.MAX_VALUE + "]", 0, 8),
                        8,
                        "tensor \"a\": shape: I64[9223372036854775807] is no possible size: long overflow"),
                refused(
                        a("U8", "[" + Long.MAX_VALUE + "]", 0, Long.MAX_VALUE),
                        8,
                        "tensor \"a\": shape: U8[9223372036854775807] is no possible size: long overflow"));
    }

    static Stream<Arguments> fields() {
        return Stream.of(
                refused(
                        a("U8", "[-2]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"-2\""),
                refused(
                        a("U8", "[-0]", 0, 0),
                        0,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"-0\""),
                refused(
                        a("U8", "[2.0]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"2.0\""),
                refused(
                        a("U8", "[2e0]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"2e0\""),
                refused(
                        a("U8", "[\"2\"]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"2\""),
                refused(
                        a("U8", "[[2]]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"[\""),
                refused(
                        a("U8", "[null]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected whole numbers, none negative, got \"null\""),
                refused(
                        a("U8", "[9223372036854775808]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected at most 9223372036854775807, got 9223372036854775808"),
                refused(
                        a("U8", "[" + "1,".repeat(64) + "2]", 0, 2),
                        2,
                        "tensor \"a\": shape: expected at most 64 numbers, got more"),
                refused(a("U8", "2", 0, 2), 2, "tensor \"a\": shape: expected an array, got a number"),
                refused(a("U8", "null", 0, 2), 2, "tensor \"a\": shape: expected an array, got null"),
                refused(a("U8", "{}", 0, 2), 2, "tensor \"a\": shape: expected an array, got an object"),
                refused(
                        a("u8", "[2]", 0, 2),
                        2,
                        "tensor \"a\": dtype: expected one of BOOL, F4, F6_E2M3, F6_E3M2, U8, I8, "
                                + "F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, I16, U16, F16, BF16, I32, U32, F32, C64, "
                                + "F64, I64, U64, got \"u8\""),
                refused("{\"a\":{\"dtype\":8}}", 0, "tensor \"a\": dtype: expected a text, got a number"),
                refused("{\"a\":{\"dtype\":true}}", 0, "tensor \"a\": dtype: expected a text, got true or false"),
                refused(
                        "{\"a\":{\"data_offsets\":[1,2,3]}}",
                        0,
                        "tensor \"a\": data_offsets: expected at most 2 numbers, got more"),
                refused(
                        "{\"a\":{\"data_offsets\":[1]}}",
                        0,
                        "tensor \"a\": expected dtype, shape and two data_offsets, got no dtype, no shape, 1 data_offsets"),
                refused(
                        "{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}",
                        1,
                        "tensor \"a\": expected dtype, shape and two data_offsets, got a dtype, a shape, no data_offsets"),
                refused(
                        tensor("\"strides\":[1]"),
                        2,
                        "tensor \"a\": expected dtype, shape and data_offsets alone, got \"strides\""));
    }

    static Stream<Arguments> structures() {
        return Stream.of(
                refused("{\"a\":[]}", 0, "tensor \"a\": value: expected an object, got an array"),
                refused("{\"a\":\"b\"}", 0, "tensor \"a\": value: expected an object, got a text"),
                refused("{\"__metadata__\":1}", 0, "__metadata__: expected an object, got a number"),
                refused("{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ \"k\": expected a text, got a number"),
                refused(
                        "{\"__metadata__\":{\"k\":{\"deep\":{}}}}",
                        0,
                        "__metadata__ \"k\": expected a text, got an object"),
                refused("{} {}", 0, "header: expected nothing after its closing }, got START_OBJECT"),
                refused("[]", 0, "header: expected it to begin with {"),
                refused(" {}", 0, "header: expected it to begin with {"),
                refused("\ufeff{}", 0, "header: expected it to begin with {"),
                refused("", 0, "header: expected it to begin with {"),
                refused("{\"\\ud800\":{}}", 0, "header: expected Unicode, got half a surrogate pair in \"\\ud800\""));
    }

    @ParameterizedTest
    @MethodSource({"layouts", "fields", "structures"})
    void isRefusedInTheseWords(String header, int dataSize, String text) throws IOException {
        Path file = RawFile.write(folder, RawFile.bytes(header, new byte[dataSize]));
        assertThrown(SafetensorsException.class, file + ": " + text, () -> SafetensorsFile.open(file));
    }

    /** In the parser's words, which are not held here: that they are about the header is. */
    static Stream<String> broken() {
        return Stream.of(
                "{",
                "{\"a\"",
                "{\"a\":}",
                "{a:1}",
                "{'a':1}",
                "{\"a\":{\"dtype\":\"U8\",}}",
                "{\"a\":{\"dtype\":\"U8\"",
                "{\"\u0001\":{}}",
                "{/* */}",
                "{\"a\":{\"shape\":[01]}}",
                "{\"a\":{\"shape\":[NaN]}}",
                "{\"a\":{\"shape\":[" + "1".repeat(21) + "]}}",
                "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}",
                "{\"" + "n".repeat(70_000) + "\":{}}",
                "{} x");
    }

    @ParameterizedTest
    @MethodSource("broken")
    void brokenJsonIsRefused(String header) throws IOException {
        Path file = RawFile.write(folder, RawFile.bytes(header));
        SafetensorsException refused = assertThrows(SafetensorsException.class, () -> SafetensorsFile.open(file));
        assertTrue(String.valueOf(refused.getMessage()).startsWith(file + ": header: "), refused.toString());
        assertEquals(Optional.empty(), refused.tensor());
        assertEquals(file, refused.file());
    }

    @Test
    void aNameThatComesTwiceIsRefused() throws IOException {
        String twice =
                "{" + RawFile.tensor("a", "U8", "[0]", 0, 0) + "," + RawFile.tensor("\\u0061", "U8", "[0]", 0, 0) + "}";
        Path file = RawFile.write(folder, RawFile.bytes(twice));
        assertThrown(
                SafetensorsException.class, file + ": header: Duplicate field 'a'", () -> SafetensorsFile.open(file));
    }
}
