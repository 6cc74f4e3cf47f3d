//! A server that gives prepared answers, one a connection, and tells what it was asked.

#![allow(clippy::disallowed_methods, reason = "a server outside, in real time")]

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Its address, and what it was asked once all answers are given.
pub async fn answering(answers: Vec<(String, String)>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let mut asked = Vec::new();
        for (status, answer) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            asked.push(request(&mut stream).await);
            let reply = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                answer.len()
            );
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
        asked
    });
    (endpoint, server)
}

/// One request, head and body.
async fn request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).await.unwrap();
        text.extend_from_slice(&buffer[..count]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = whole.split_once("\r\n\r\n").unwrap_or((&whole, ""));
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        if length.is_some_and(|length: usize| body.len() >= length) {
            return whole;
        }
    }
}
