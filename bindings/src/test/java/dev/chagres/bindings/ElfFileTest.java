package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Optional;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class ElfFileTest {

    private static final String PROCESSOR = Surroundings.ofProcess().processor();

    @TempDir
    private Path folder;

    private Optional<String> fault(byte[] content) throws IOException {
        Path file = folder.resolve("lib.so");
        Files.write(file, content);
        return ElfFile.fault(file, PROCESSOR);
    }

    @Test
    void aLibraryHasNoFault() {
        Path guard = ForkedJvm.nativeFolder().resolve("libchagres_te.so");
        assertEquals(Optional.empty(), ElfFile.fault(guard, PROCESSOR));
    }

    @Test
    void aLinkToALibraryHasNoFault() throws IOException {
        Path library = folder.resolve("lib.so.1.2");
        FakeLibrary.compile(library, "int x;");
        assertEquals(
                Optional.empty(),
                ElfFile.fault(Files.createSymbolicLink(folder.resolve("lib.so.1"), library), PROCESSOR));
    }

    @Test
    void everyTruncationThatTheLoaderWouldMapIsSeen() throws IOException {
        Path library = folder.resolve("whole.so");
        FakeLibrary.compile(library, "char big[100000] = {1}; int f(void) { return big[7]; }");
        byte[] whole = Files.readAllBytes(library);
        assertEquals(Optional.empty(), fault(whole));
        // The section table and debug names at the end are not mapped; the big array is, and ends well before.
        for (int length = 0; length < 100_000; length += 997) {
            Optional<String> fault = fault(Arrays.copyOf(whole, length));
            assertTrue(fault.isPresent(), "no fault in the first " + length + " bytes of " + whole.length);
        }
        assertEquals(
                Optional.of("truncated: the file is shorter than its ELF header says"),
                fault(Arrays.copyOf(whole, 50_000)));
    }

    @Test
    void otherFilesAreNoLibraries() throws IOException {
        Optional<String> expected = Optional.of("not a shared library (no ELF header)");
        assertEquals(expected, fault(new byte[0]));
        assertEquals(expected, fault("INPUT(libcudnn.so.9.19)\n".getBytes(StandardCharsets.UTF_8)));
        assertEquals(expected, fault(new byte[4096]));
    }

    @Test
    void aLibraryForAnotherProcessorIsNamed() throws IOException {
        short other = (short) (FakeLibrary.machine() == 62 ? 183 : 62);
        assertEquals(
                Optional.of("made for another processor (ELF machine " + other + "), this JVM runs on " + PROCESSOR),
                fault(FakeLibrary.header(other)));
    }

    @Test
    void aProgramOrA32BitFileIsNoSharedLibrary() throws IOException {
        byte[] header = FakeLibrary.header(FakeLibrary.machine());
        header[16] = 1; // a relocatable object
        Optional<String> expected = Optional.of("not a 64-bit little-endian shared library");
        assertEquals(expected, fault(header));
        header[16] = 3;
        header[4] = 1; // 32 bit
        assertEquals(expected, fault(header));
    }

    @Test
    void aHeaderThatPointsOutsideTheFileIsSeen() throws IOException {
        byte[] header = FakeLibrary.header(FakeLibrary.machine());
        header[56] = (byte) 0xff; // 255 segments
        header[39] = (byte) 0x80; // table at a negative offset
        assertTrue(fault(header).isPresent());
        header[39] = 0x7f;
        assertTrue(fault(header).isPresent());
    }

    @Test
    void whatIsNoFileIsNamed() throws IOException {
        assertEquals(Optional.of("no such file"), ElfFile.fault(folder.resolve("absent"), PROCESSOR));
        assertEquals(Optional.of("not a file"), ElfFile.fault(folder, PROCESSOR));
        Path dangling = Files.createSymbolicLink(folder.resolve("dangling.so"), folder.resolve("absent"));
        assertEquals(Optional.of("a symbolic link to nothing"), ElfFile.fault(dangling, PROCESSOR));
    }
}
