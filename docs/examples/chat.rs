//! A chat over TCP, in lines, for several people: the first line of each is a line of people.txt, their name and a word that only
//! they know. What a crash interrupts is answered after it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bantam::{Agent, Cancel, Channel, FileStore, Inbound, Inbox, OpenAi, Result};

struct TcpChat {
    listener: TcpListener,
    people: Arc<Vec<String>>,
    /// The clients by the names of their people.
    clients: Arc<Clients>,
}

type Clients = Mutex<HashMap<String, Arc<TcpStream>>>;

impl Channel for TcpChat {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn poll(&self, inbox: &Inbox, _: &Cancel) -> Result<()> {
        for stream in self.listener.incoming().flatten() {
            let (inbox, people) = (inbox.clone(), self.people.clone());
            let clients = self.clients.clone();
            thread::spawn(move || read(stream, &people, &inbox, &clients));
        }
        Ok(())
    }

    /// Who is not here gets the text later.
    fn deliver(&self, chat: &str, text: &str) -> Result<()> {
        // Writing may take a while: the lock is not held over it.
        let clients = self.clients.lock().map(|all| all.get(chat).cloned());
        let absent = std::io::Error::other("nobody of that name is here");
        let client = clients.ok().flatten().ok_or(absent)?;
        Ok(writeln!(&*client, "{text}")?)
    }
}

fn read(stream: TcpStream, people: &[String], inbox: &Inbox, clients: &Clients) -> Option<()> {
    // A client that does not read keeps nobody else waiting for longer.
    let patience = Some(Duration::from_secs(5));
    stream.set_write_timeout(patience).ok()?;
    let stream = Arc::new(stream);
    let mut lines = BufReader::new(&*stream).lines();
    let first = lines.next()?.ok()?;
    let known = people.iter().find(|person| **person == first)?;
    let name = known.split_whitespace().next()?.to_owned();
    clients.lock().ok()?.insert(name.clone(), stream.clone());
    for line in lines.map_while(std::io::Result::ok) {
        let message = Inbound::line("tcp", &name, line).ok()?;
        inbox.add(message).ok()?;
    }
    None
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    let people = std::fs::read_to_string("people.txt")?;
    let people = Arc::new(people.lines().map(str::to_owned).collect());
    let listener = TcpListener::bind(std::env::var("CHAT").unwrap_or("127.0.0.1:7007".to_owned()))?;
    println!("{}", listener.local_addr()?);
    let chat = TcpChat {
        listener,
        people,
        clients: Arc::default(),
    };
    bantam::serve(
        agent,
        "agent-home",
        vec![Box::new(chat)],
        &Cancel::new(None),
    )
}
