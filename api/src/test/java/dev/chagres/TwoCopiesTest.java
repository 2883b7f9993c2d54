package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.lang.reflect.InvocationTargetException;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A second copy of the classes in a class loader of its own, as a second application of a server has it. */
@Tag("L0")
class TwoCopiesTest {
    /** What the second copy does, through that copy's classes. */
    public static final class Second {
        private Second() {}

        /** Opens a device, adds and closes. */
        public static float add() {
            try (Device device = Device.open();
                    Scope scope = device.openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, 1);
                x.set(device.stream(), 21f);
                dev.chagres.ops.Elementwise.add(x, x, x, device.stream());
                return x.toFloats(device.stream())[0];
            }
        }

        /** Begins a file and says what hinders it. */
        public static String write(Path file) {
            try (dev.chagres.io.AtomicFile begun = dev.chagres.io.AtomicFile.create(file)) {
                return "began " + begun;
            } catch (RuntimeException refused) {
                return String.valueOf(refused.getMessage());
            }
        }
    }

    private static URLClassLoader secondLoader() throws MalformedURLException {
        List<URL> urls = new ArrayList<>();
        for (String part : System.getProperty("java.class.path").split(File.pathSeparator, -1)) {
            urls.add(Path.of(part).toUri().toURL());
        }
        return new URLClassLoader(urls.toArray(URL[]::new), ClassLoader.getPlatformClassLoader());
    }

    @Test
    void bothComputeOnThreadsOfTheirOwnOrInTurn() throws Exception {
        try (URLClassLoader loader = secondLoader()) {
            Class<?> second = loader.loadClass(Second.class.getName());
            assertNotSame(Second.class, second);
            assertEquals(42f, second.getMethod("add").invoke(null), "before this copy opens a device");
            try (Device device = Device.open()) {
                InvocationTargetException refused = assertThrows(
                        InvocationTargetException.class,
                        () -> second.getMethod("add").invoke(null));
                assertEquals(IllegalStateException.class, refused.getCause().getClass());
                String text = String.valueOf(refused.getCause().getMessage());
                assertTrue(
                        text.startsWith("thread \"" + Thread.currentThread().getName()
                                + "\" drives a device of another copy of Chagres, which class loader "),
                        text);
                assertTrue(
                        text.endsWith(" has loaded: close or detach that device first, or use another thread"), text);
                AtomicReference<Object> elsewhere = new AtomicReference<>();
                Thread thread = Thread.ofPlatform().start(() -> {
                    try {
                        elsewhere.set(second.getMethod("add").invoke(null));
                    } catch (ReflectiveOperationException failure) {
                        elsewhere.set(failure);
                    }
                });
                thread.join();
                assertEquals(42f, elsewhere.get());
                device.detach();
                assertEquals(42f, second.getMethod("add").invoke(null), "while this copy's device is detached");
                device.attach();
                assertEquals(42f, Second.add(), "this copy drives two devices");
            }
            assertEquals(42f, second.getMethod("add").invoke(null), "after this copy has closed its device");
        }
    }

    /** A second channel to a file, closed, would release the first one's lock. */
    @Test
    void aFileIsWrittenByOneOfThem(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("weights");
        try (URLClassLoader loader = secondLoader();
                dev.chagres.io.AtomicFile begun = dev.chagres.io.AtomicFile.create(file)) {
            Object answer = loader.loadClass(Second.class.getName())
                    .getMethod("write", Path.class)
                    .invoke(null, file);
            assertEquals(Second.write(file), answer, () -> "this copy writes " + begun);
            assertTrue(answer.toString().contains("this process"), answer.toString());
        }
    }
}
