package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.foreign.GroupLayout;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Sizes, offsets and constants of the generated classes are what the C compiler makes of the same headers. */
@VendorTest
class LayoutsTest {

    private static final String PROLOGUE = """
            #include <stddef.h>
            #include <stdint.h>
            #include <stdio.h>
            #define INTEGER(name) printf("constant %s %d\\n", #name, (int)(name))
            #define REAL(name) printf("constant %s %a\\n", #name, (double)(name))
            #define TEXT(name) printf("constant %s \\"%s\\"\\n", #name, name)
            #define POINTER(name) printf("constant %s %llu\\n", #name, (unsigned long long)(uintptr_t)(name))
            #define STRUCT(kind, name) printf("struct %s %zu %zu\\n", #name, sizeof(kind name), _Alignof(kind name))
            #define FIELD(kind, type, name) \\
              printf("field %s.%s %zu %zu\\n", #type, #name, offsetof(kind type, name), sizeof(((kind type *)0)->name))
            """;

    private static final Map<Bindings, String> HEADERS = Map.of(
            Bindings.TE, "chagres/te.h",
            Bindings.OPS, "chagres/ops.h",
            Bindings.CUDA, "cuda_runtime_api.h",
            Bindings.NCCL, "nccl.h",
            Bindings.CUDNN, "cudnn.h");

    /** CUDA's half types choose between device and host code through a header that their wheel lacks. */
    private static final String HOST_TARGET = """
            #pragma once
            #define NV_EXTRACT(...) NV_EXTRACT __VA_ARGS__
            #define NV_NO_NV_EXTRACT
            #define NV_JOIN_EXPANDED(first, ...) first##__VA_ARGS__
            #define NV_JOIN(first, ...) NV_JOIN_EXPANDED(first, __VA_ARGS__)
            #define NV_WITHOUT_PARENTHESES(code) NV_JOIN(NV_NO_, NV_EXTRACT code)
            #define NV_IF_ELSE_TARGET(condition, device, host) NV_WITHOUT_PARENTHESES(host)
            #define NV_IF_TARGET(condition, ...)
            """;

    @TempDir
    private Path folder;

    private static List<String> includes() {
        Path vendor = VendorFolder.folder();
        Path project = VendorFolder.project();
        return Stream.of(
                        project.resolve("native/include"),
                        project.resolve("native/generated/include"),
                        vendor.resolve("nvidia/cu13/include"),
                        vendor.resolve("nvidia/nccl/include"),
                        vendor.resolve("nvidia/cudnn/include"),
                        vendor.resolve("transformer_engine/common/include"))
                .map(include -> "-I" + include)
                .toList();
    }

    /** Compiles and runs a program; its lines, each without the last words as key and with them as value. */
    private Map<String, String> run(String compiler, String extension, String source) throws IOException {
        Path file = folder.resolve("layouts" + extension);
        Path program = folder.resolve("layouts");
        Files.writeString(file, source);
        Files.writeString(Files.createDirectories(folder.resolve("nv")).resolve("target"), HOST_TARGET);
        List<String> command =
                new ArrayList<>(List.of(compiler, "-w", "-o", program.toString(), file.toString(), "-I" + folder));
        command.addAll(includes());
        ForkedJvm.execute(command, Map.of()).expectExit(0);
        Map<String, String> values = new TreeMap<>();
        ForkedJvm.execute(List.of(program.toString()), Map.of())
                .expectExit(0)
                .output()
                .lines()
                .forEach(line -> {
                    int name = line.indexOf(' ', line.indexOf(' ') + 1);
                    values.put(line.substring(0, name), line.substring(name + 1));
                });
        return values;
    }

    private static boolean isText(Object value) {
        return value instanceof MemorySegment segment && segment.byteSize() > 0;
    }

    private static String constantStatement(String name, Object value) {
        return switch (value) {
            case Integer _ -> "INTEGER(" + name + ");";
            case Float _, Double _ -> "REAL(" + name + ");";
            case MemorySegment _ -> (isText(value) ? "TEXT(" : "POINTER(") + name + ");";
            default -> throw new AssertionError(name + " is a " + value.getClass());
        };
    }

    private static String constantText(Object value) {
        return switch (value) {
            case Float real -> Double.toHexString(real);
            case Double real -> Double.toHexString(real);
            case MemorySegment segment ->
                isText(segment) ? '"' + segment.getString(0) + '"' : Long.toUnsignedString(segment.address());
            default -> value.toString();
        };
    }

    /** C writes 0x1p-1 and Java 0x1.0p-1: both are read back. */
    private static String normalized(String value) {
        return value.startsWith("0x") || value.startsWith("-0x")
                ? Double.toHexString(Double.parseDouble(value))
                : value;
    }

    /** The fields of a struct that the generated class knows: those with an offset. */
    private static List<String> fields(Class<?> struct) {
        return Stream.of(struct.getMethods())
                .map(Method::getName)
                .filter(name -> name.endsWith("$offset"))
                .map(name -> name.substring(0, name.length() - "$offset".length()))
                .sorted()
                .toList();
    }

    private static Object invoke(Class<?> type, String method) {
        try {
            return type.getMethod(method).invoke(null);
        } catch (ReflectiveOperationException absent) {
            throw new AssertionError(type + " has no " + method, absent);
        }
    }

    private record Generated(StringBuilder statements, Map<String, String> values) {
        Generated() {
            this(new StringBuilder(), new TreeMap<>());
        }

        void add(String statement, String key, String value) {
            statements.append("  ").append(statement).append('\n');
            values.put(key, value);
        }

        void addStruct(String kind, String name, Class<?> type) {
            GroupLayout layout = (GroupLayout) invoke(type, "layout");
            add(
                    "STRUCT(" + kind + ", " + name + ");",
                    "struct " + name,
                    layout.byteSize() + " " + layout.byteAlignment());
            for (String field : fields(type)) {
                long offset = (long) invoke(type, field + "$offset");
                long size = ((MemoryLayout) invoke(type, field + "$layout")).byteSize();
                String statement = "FIELD(" + kind + ", " + name + ", " + field + ");";
                add(statement, "field " + name + "." + field, offset + " " + size);
            }
        }
    }

    @ParameterizedTest
    @EnumSource(Bindings.class)
    void constantsStructsAndFieldsAreTheCompilers(Bindings bindings) throws IOException {
        Generated generated = new Generated();
        for (String name : bindings.asked("constant")) {
            Object value = bindings.constant(name);
            generated.add(constantStatement(name, value), "constant " + name, constantText(value));
        }
        for (String kind : List.of("struct", "union")) {
            for (String name : bindings.asked(kind)) {
                generated.addStruct(kind, name, bindings.struct(name));
            }
        }
        Map<String, String> compiled = run(
                "cc",
                ".c",
                PROLOGUE + "#include <" + HEADERS.get(bindings) + ">\n" + "int main(void) {\n" + generated.statements()
                        + "  return 0;\n}\n");
        compiled.replaceAll((key, value) -> normalized(value));
        generated.values().replaceAll((key, value) -> normalized(value));
        assertEquals(generated.values(), compiled);
        int asked = bindings.asked("constant").size()
                + bindings.asked("struct").size()
                + bindings.asked("union").size();
        long told = compiled.keySet().stream()
                .filter(key -> !key.startsWith("field "))
                .count();
        assertEquals(asked, told, "every constant and struct that was asked for");
    }

    /** te.h is written by our generator: its constants must be those of NVIDIA's C++ headers. */
    @Test
    void transformerEnginesConstantsAreUpstreams() throws IOException {
        Path headers = VendorFolder.folder().resolve("transformer_engine/common/include/transformer_engine");
        StringBuilder source = new StringBuilder("#include <cstdio>\n");
        try (Stream<Path> files = Files.list(headers)) {
            // comm_gemm_overlap.h includes an internal header that the wheel does not ship.
            files.map(file -> String.valueOf(file.getFileName()))
                    .filter(name -> name.endsWith(".h") && !name.equals("comm_gemm_overlap.h"))
                    .sorted()
                    .forEach(name -> source.append("#include <transformer_engine/" + name + ">\n"));
        }
        source.append("int main() {\n");
        Map<String, String> expected = new TreeMap<>();
        for (String name : Bindings.TE.asked("constant")) {
            if (!name.startsWith("TE_")) {
                source.append("  std::printf(\"constant " + name + " %d\\n\", int(" + upstreamName(name) + "));\n");
                expected.put("constant " + name, Bindings.TE.constant(name).toString());
            }
        }
        for (String name : Bindings.TE.asked("struct")) {
            source.append("  std::printf(\"struct " + name + " %zu\\n\", sizeof(" + name + "));\n");
            GroupLayout layout = (GroupLayout) invoke(Bindings.TE.struct(name), "layout");
            expected.put("struct " + name, Long.toString(layout.byteSize()));
        }
        assertEquals(expected, run("c++", ".cpp", source + "  return 0;\n}\n"));
        assertTrue(expected.size() > 250, "compared " + expected.size() + " names");
    }

    /** C has no scoped enumerations: te.h puts the scope into the name. */
    private static String upstreamName(String name) {
        for (String scope : List.of("NVTE_Activation_Type", "NVTE_Norm_Type", "NVTETensorPack")) {
            if (name.startsWith(scope + "_")) {
                return scope + "::" + name.substring(scope.length() + 1);
            }
        }
        return name;
    }
}
