package dev.chagres.nccl;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import dev.chagres.launch.Ranks;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;

/** Ends, once its communicator is closed or while it is open, with a destructor that aborts the process. */
final class ExitProgram {
    private ExitProgram() {}

    /** {@code arguments}: {@code open} or {@code closed}. */
    public static void main(String... arguments) throws Throwable {
        Linker linker = Linker.nativeLinker();
        int _ = (int) linker.downcallHandle(
                        linker.defaultLookup().findOrThrow("on_exit"),
                        FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS))
                .invokeExact(linker.defaultLookup().findOrThrow("abort"), MemorySegment.NULL);
        Ranks.local(2).each(rank -> {
            if (rank.index() == 0 && arguments[0].equals("open")) {
                System.out.println("ends");
                System.exit(7);
            }
        });
        System.exit(7);
    }
}
