package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.conformance.ChildJvm;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A program may end while communicators are open: destructors of native libraries, which threads of NCCL still use, do not run then. */
@Tag("L0")
class ProcessExitTest {
    /** Of a process that was aborted. */
    private static final int ABORTED = 128 + 6;

    private static int status(String mode, String printed) throws Exception {
        Process process = ChildJvm.of(ExitProgram.class, mode)
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
        String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(process.waitFor(2, TimeUnit.MINUTES));
        assertTrue(text.startsWith(printed), text);
        return process.exitValue();
    }

    @Test
    void theStatusIsTheProgramsWhileACommunicatorIsOpen() throws Exception {
        assertEquals(7, status("open", "ends\n"));
    }

    @Test
    void destructorsRunOnceAllAreClosed() throws Exception {
        assertEquals(ABORTED, status("closed", ""));
    }
}
