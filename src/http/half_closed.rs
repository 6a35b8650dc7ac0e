//! Receives responses of servers that have stopped reading, for example because they reject a large body.

use std::cell::Cell;

use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

thread_local! {
    static WRITE_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the server stopped reading before the end of the request. Each request has a separate thread.
pub(super) fn write_failed() -> bool {
    WRITE_FAILED.get()
}

#[derive(Debug)]
pub(super) struct HalfClosedConnector;

#[derive(Debug)]
pub(super) struct HalfClosedTransport<T> {
    inner: T,
    /// Whether the server has stopped reading; earlier output of the server is still readable.
    write_closed: bool,
}

impl<In: Transport> Connector<In> for HalfClosedConnector {
    type Out = HalfClosedTransport<In>;

    fn connect(
        &self,
        _: &ConnectionDetails,
        inner: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(inner.map(|inner| HalfClosedTransport {
            inner,
            write_closed: false,
        }))
    }
}

impl<T: Transport> Transport for HalfClosedTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
        if self.write_closed {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            // If the server has sent no response, reading fails later.
            Err(ureq::Error::Io(e)) if matches!(e.kind(), BrokenPipe | ConnectionReset) => {
                self.write_closed = true;
                WRITE_FAILED.set(true);
                Ok(())
            }
            result => result,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        Transport::await_input(&mut self.inner, timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.write_closed && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
