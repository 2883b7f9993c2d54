package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.bindings.MissingLibraryException.Attempt;
import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

@Tag("L0")
class NativeExceptionTest {

    private static NativeFailure failure(String library) {
        return new NativeFailure(library, "some_function", 3, "SOME_CODE", "what the library said", 1);
    }

    private static final MissingLibraryException MISSING = new MissingLibraryException(
            "cuDNN",
            new Finding(
                    Reason.NOT_FOUND,
                    "libcudnn.so.9, wanted 9.19 <= version < 10.0",
                    List.of(new Attempt("CUDNN_HOME /opt", "no such folder"), new Attempt("toolkit", "not there")),
                    "",
                    "pip install it"));

    static List<NativeException> family() {
        return List.of(
                new TransformerEngineException(failure(TransformerEngineException.LIBRARY)),
                new CudaException(failure(CudaException.LIBRARY)),
                new CudnnException(failure(CudnnException.LIBRARY)),
                new NcclException(failure(NcclException.LIBRARY)),
                new OpsException(failure(OpsException.LIBRARY)),
                MISSING);
    }

    @Test
    void theFamilyUnderTestIsWhole() {
        Set<Class<?>> permitted = Set.of(NativeException.class.getPermittedSubclasses());
        assertEquals(permitted, family().stream().map(Object::getClass).collect(Collectors.toSet()));
    }

    static Stream<NativeException> refusals() {
        return family().stream().filter(exception -> exception != MISSING);
    }

    @ParameterizedTest
    @MethodSource("refusals")
    void aRefusalTellsLibraryFunctionCodeDeviceAndText(NativeException exception) {
        assertEquals(
                exception.library() + ": some_function returned SOME_CODE (3) on device 1: what the library said",
                exception.getMessage());
        assertEquals("some_function", exception.function());
        assertEquals(3, exception.code());
        assertEquals("SOME_CODE", exception.codeName());
        assertEquals("what the library said", exception.libraryText());
        assertEquals(1, exception.device());
    }

    @Test
    void librariesHaveTheirNames() {
        assertEquals(
                List.of("Transformer Engine", "CUDA runtime", "cuDNN", "NCCL", "Chagres operations", "cuDNN"),
                family().stream().map(NativeException::library).toList());
    }

    @Test
    void anUnknownDeviceIsLeftOutAndMissingTextIsSaidToBeMissing() {
        NativeFailure failure = new NativeFailure("NCCL", "ncclSend", 5, "ncclInvalidUsage", " \n", -1);
        assertEquals(
                "NCCL: ncclSend returned ncclInvalidUsage (5): the library gave no text",
                new NcclException(failure).getMessage());
    }

    @Test
    void aFailureWithoutNamesIsRefused() {
        IllegalArgumentException refused =
                assertThrows(IllegalArgumentException.class, () -> new NativeFailure("NCCL", "", 5, "x", "", -1));
        assertEquals("library, function and codeName must not be empty: \"NCCL\", \"\", \"x\"", refused.getMessage());
    }

    @Test
    void aMissingLibraryTellsEveryPlaceAndTheRemedy() {
        assertEquals("""
                cuDNN: NOT_FOUND: libcudnn.so.9, wanted 9.19 <= version < 10.0
                  tried CUDNN_HOME /opt: no such folder
                  tried toolkit: not there
                  to mend it: pip install it""", MISSING.getMessage());
        assertEquals(Reason.NOT_FOUND, MISSING.reason());
        assertEquals(2, MISSING.attempts().size());
        assertEquals("pip install it", MISSING.remedy());
        assertEquals("libcudnn.so.9, wanted 9.19 <= version < 10.0", MISSING.detail());
        assertEquals("dlopen", MISSING.function());
        assertEquals(-1, MISSING.device());
    }

    @Test
    void aMissingLibraryQuotesTheLoader() {
        Finding finding = new Finding(Reason.NOT_LOADABLE, "/x.so", List.of(), "invalid ELF header\n", "mend");
        MissingLibraryException exception = new MissingLibraryException("NCCL", finding);
        assertEquals(
                "NCCL: NOT_LOADABLE: /x.so\n  the loader said: invalid ELF header\n  to mend it: mend",
                exception.getMessage());
        assertEquals("invalid ELF header\n", exception.libraryText());
    }

    @Test
    void attemptsAreACopy() {
        List<Attempt> attempts = new ArrayList<>();
        MissingLibraryException exception =
                new MissingLibraryException("NCCL", new Finding(Reason.NOT_FOUND, "x", attempts, "", "mend"));
        attempts.add(new Attempt("later", "seen"));
        assertEquals(List.of(), exception.attempts());
    }

    @ParameterizedTest
    @MethodSource("family")
    void metAgainItSaysTheSameAndHasTheFirstAsCause(NativeException first) {
        NativeException again = first.again();
        assertNotSame(first, again);
        assertSame(first.getClass(), again.getClass());
        assertEquals(first.getMessage(), again.getMessage());
        assertSame(first, again.getCause());
        assertEquals(first.codeName(), again.codeName());
    }

    @ParameterizedTest
    @MethodSource("family")
    void everyExceptionCanBeSerialized(NativeException exception) throws IOException, ClassNotFoundException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(exception);
        }
        try (ObjectInputStream in = new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
            assertEquals(exception.getMessage(), ((NativeException) in.readObject()).getMessage());
        }
    }
}
