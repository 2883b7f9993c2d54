package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.GroupLayout;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.PaddingLayout;
import java.lang.foreign.SequenceLayout;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodType;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/**
 * GraalVM's native-image must know every kind of call into C when it builds. {@code reachability-metadata.json} in the jar has them: this is its
 * generator ({@code -Dchagres.test.store=true}), and the check that it is current.
 */
class NativeImageMetadataTest {
    private static final Path FILE = VendorFolder.project()
            .resolve(
                    "bindings/src/main/resources/META-INF/native-image/dev.chagres/chagres-bindings/reachability-metadata.json");

    /** Hand-written classes that keep handles of calls in static fields. */
    private static final List<Class<?>> BY_HAND = List.of(AddressCalls.class, BackendCalls.class, DynamicLinker.class);

    @Test
    void theJarTellsEveryKindOfCall() throws IOException, IllegalAccessException {
        NativeLibraries.ensureLoaded();
        TreeSet<String> calls = new TreeSet<>();
        for (Bindings bindings : Bindings.values()) {
            for (String function : bindings.functions()) {
                calls.add(call(bindings.descriptor(function)));
            }
        }
        for (Class<?> type : BY_HAND) {
            for (Field field : type.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) && field.getType() == MethodHandle.class) {
                    field.setAccessible(true);
                    MethodHandle handle = (MethodHandle) field.get(null);
                    calls.add(call(handle.type()));
                }
            }
        }
        calls.add(call(FunctionDescriptor.ofVoid())); // whether OpenBLAS has a function
        Stream.of(ThreadAffinity.DESCRIPTOR, ProcessExit.FLUSH, ProcessExit.REGISTER)
                .forEach(descriptor -> calls.add(call(descriptor)));
        String text = text(calls);
        if (Boolean.getBoolean("chagres.test.store")) {
            Files.createDirectories(FILE.getParent());
            Files.writeString(FILE, text);
        }
        assertEquals(text, Files.readString(FILE), FILE + "; -Dchagres.test.store=true writes it");
        assertTrue(calls.size() > 100, () -> "only " + calls.size());
    }

    private static String text(TreeSet<String> calls) {
        return calls.stream().collect(Collectors.joining(",\n      ", """
                        {
                          "resources": [
                            {"glob": "dev/chagres/native/**"}
                          ],
                          "foreign": {
                            "downcalls": [
                        """ + "      ", "\n    ]\n  }\n}\n"));
    }

    private static String call(FunctionDescriptor descriptor) {
        return call(
                descriptor.returnLayout().map(NativeImageMetadataTest::name).orElse("void"),
                descriptor.argumentLayouts().stream().map(NativeImageMetadataTest::name));
    }

    /** Of a handle that takes no struct by value, the type says it. */
    private static String call(MethodType type) {
        return call(name(type.returnType()), type.parameterList().stream().map(NativeImageMetadataTest::name));
    }

    private static String call(String result, Stream<String> parameters) {
        return "{\"returnType\": \"" + result + "\", \"parameterTypes\": ["
                + parameters.map(one -> '"' + one + '"').collect(Collectors.joining(", ")) + "]}";
    }

    /** Returns C's name, as {@code Linker.canonicalLayouts} has it. */
    private static String name(MemoryLayout layout) {
        return switch (layout) {
            case AddressLayout _ -> "void*";
            case ValueLayout value -> name(value.carrier());
            case GroupLayout group ->
                group.memberLayouts().stream()
                        .map(NativeImageMetadataTest::name)
                        .collect(Collectors.joining(", ", "struct(", ")"));
            case SequenceLayout sequence ->
                "sequence(" + sequence.elementCount() + ", " + name(sequence.elementLayout()) + ")";
            case PaddingLayout padding -> "padding(" + padding.byteSize() + ")";
        };
    }

    private static String name(Class<?> carrier) {
        if (carrier == MemorySegment.class) {
            return "void*";
        }
        if (carrier == byte.class) {
            return "char";
        }
        return carrier == boolean.class ? "bool" : carrier.getName();
    }

    /** A handle of another class would be missed. */
    @Test
    void noOtherClassKeepsHandles() throws IOException {
        Path sources = VendorFolder.project().resolve("bindings/src/main/java/dev/chagres/bindings");
        try (Stream<Path> files = Files.list(sources)) {
            List<String> found = files.filter(file -> {
                        try {
                            return Files.readString(file).contains("static final MethodHandle ");
                        } catch (IOException failure) {
                            throw new UncheckedIOException(failure);
                        }
                    })
                    .map(file -> file.getFileName().toString().replace(".java", ""))
                    .sorted()
                    .toList();
            assertEquals(BY_HAND.stream().map(Class::getSimpleName).sorted().toList(), found);
        }
    }
}
