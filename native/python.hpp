// What the bindings share: owned references, views of arrays, errors, and the interpreter's lock.
//
// A binding is written in three steps: read the arguments while the lock is held, release the lock and run code that
// knows nothing of Python, take the lock again and build the answer.
#pragma once

#if !defined(Py_GIL_DISABLED) && PY_VERSION_LEAST >= 0x030B0000
#define Py_LIMITED_API PY_VERSION_LEAST
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace fanrank::python {

// A Python error is set already; `guarded` hands it on.
struct PythonError : std::exception {};

// Whether this thread ends while it waits for the interpreter's lock: before Python 3.14 a daemon thread that asks for the
// lock when the interpreter shuts down is ended there, and its stack is unwound. Nothing of Python may be touched then.
inline thread_local bool lock_is_lost = false;

// An owned reference.
class Ref {
public:
    Ref() = default;
    explicit Ref(PyObject* owned) : object_(owned) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    ~Ref() {
        if (!lock_is_lost) Py_XDECREF(object_);
    }

    static Ref borrow(PyObject* object) {
        Py_XINCREF(object);
        return Ref(object);
    }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

private:
    PyObject* object_ = nullptr;
};

// The new reference that a call of Python's API returned. Throws where it returned an error.
inline Ref checked(PyObject* object) {
    if (object == nullptr) throw PythonError();
    return Ref(object);
}

// Releases the interpreter's lock while it lives, where `release` is true.
class WithoutLock {
public:
    explicit WithoutLock(bool release = true) : state_(release ? PyEval_SaveThread() : nullptr) {}
    // Not noexcept: the end of the thread unwinds the stack from here.
    ~WithoutLock() noexcept(false) {
        if (state_ == nullptr) return;
        lock_is_lost = true;
        PyEval_RestoreThread(state_);
        lock_is_lost = false;
    }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

private:
    PyThreadState* state_;
};

// A view of a C-contiguous array of numbers of type T, such as a numpy array. It keeps the array alive.
// `T` is const where the array may be read-only.
template <class T>
class Array {
    using Value = std::remove_const_t<T>;

public:
    Array() = default;
    explicit Array(PyObject* object, const char* name = "array") {
        int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (std::is_const_v<T> ? 0 : PyBUF_WRITABLE);
        if (PyObject_GetBuffer(object, &view_, flags) != 0) throw PythonError();
        filled_ = true;
        if (view_.itemsize != sizeof(T) || !fits(view_.format)) {
            std::string format = view_.format == nullptr ? "?" : view_.format;
            close();
            throw std::invalid_argument(std::string(name) + ": wrong type of numbers (format " + format + ", " +
                                        std::to_string(sizeof(T)) + " bytes expected)");
        }
    }
    Array(Array&& other) noexcept : view_(other.view_), filled_(std::exchange(other.filled_, false)) {}
    Array& operator=(Array&& other) noexcept {
        close();
        view_ = other.view_;
        filled_ = std::exchange(other.filled_, false);
        return *this;
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { close(); }

    T* data() const { return static_cast<T*>(view_.buf); }
    std::size_t size() const { return filled_ ? static_cast<std::size_t>(view_.len) / sizeof(T) : 0; }
    std::span<T> span() const { return {data(), size()}; }
    T& operator[](std::size_t index) const { return data()[index]; }

private:
    static bool fits(const char* format) {
        if (format == nullptr) return sizeof(T) == 1;
        char kind = format[0] == '<' || format[0] == '=' || format[0] == '@' ? format[1] : format[0];
        if constexpr (std::is_floating_point_v<Value>) return kind == 'f' || kind == 'd';
        if constexpr (sizeof(T) == 1) return kind == 'b' || kind == 'B' || kind == '?' || kind == 'c';
        if constexpr (std::is_signed_v<Value>) return kind == 'h' || kind == 'i' || kind == 'l' || kind == 'q' || kind == 'n';
        return kind == 'H' || kind == 'I' || kind == 'L' || kind == 'Q' || kind == 'N';
    }
    void close() {
        if (filled_ && !lock_is_lost) PyBuffer_Release(&view_);
        filled_ = false;
    }

    Py_buffer view_{};
    bool filled_ = false;
};

// Bytes of one number of an array: decides which template serves.
inline Py_ssize_t item_size(PyObject* object) {
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) throw PythonError();
    Py_ssize_t size = view.itemsize;
    PyBuffer_Release(&view);
    return size;
}

inline std::int64_t to_int(PyObject* object) {
    std::int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return value;
}

inline double to_double(PyObject* object) {
    double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred() != nullptr) throw PythonError();
    return value;
}

inline bool to_bool(PyObject* object) {
    int value = PyObject_IsTrue(object);
    if (value < 0) throw PythonError();
    return value != 0;
}

// The arguments of a call by position. Throws where a call does not have `count` of them.
class Arguments {
public:
    Arguments(PyObject* const* values, Py_ssize_t given, Py_ssize_t count, const char* name) : values_(values) {
        if (given != count) {
            PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, count, given);
            throw PythonError();
        }
    }
    PyObject* operator[](Py_ssize_t index) const { return values_[index]; }

private:
    PyObject* const* values_;
};

// Runs the body of a binding and turns what it throws into a Python error.
template <class Body>
PyObject* guarded(Body&& body) {
    try {
        return body();
    } catch (const PythonError&) {
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

// A row of a table of methods, for a function that takes its arguments by position.
inline PyMethodDef method(const char* name, Function function, const char* doc) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, doc};
}

// An instance of a Python type that holds one C++ object.
template <class Held>
struct Holder {
    PyObject_HEAD
    Held* held;
};

template <class Held>
Held& held(PyObject* self) {
    return *reinterpret_cast<Holder<Held>*>(self)->held;
}

template <class Held>
void drop(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Holder<Held>*>(self)->held;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// A new instance of `type` around an object made by `make`.
template <class Held, class Make>
PyObject* wrap(PyTypeObject* type, Make&& make) {
    Ref self = checked(PyType_GenericAlloc(type, 0));
    reinterpret_cast<Holder<Held>*>(self.get())->held = make();
    return self.release();
}

// Adds a type or function table to the module. Each binding file has one such function, which module.cpp calls.
int add_text(PyObject* module);
int add_postings(PyObject* module);
int add_search(PyObject* module);
int add_ids(PyObject* module);
int add_rows(PyObject* module);

}  // namespace fanrank::python
